"""What ``quiver doctor`` finds: each weakness is told, and what is well is not."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quiver import folder_version, formats
from quiver.cli.doctor import access, disk, machine
from quiver.cli.doctor.certificate import certificate, expiry
from quiver.cli.doctor.finding import Verdict
from quiver.cli.doctor.folder import version_of_folder
from quiver.cli.support.exit_codes import ExitCode, run
from quiver.config import Address, Limits, Metadata, NodeConfig, Security
from quiver.folder_version import FolderVersion, encode_version
from quiver.formats import Format
from tests.integration.certificates import Authority
from tests.serving import app

OPEN = Address("0.0.0.0", 7401)
NOW = datetime.now(UTC)


def config(folder: Path, **rest: object) -> NodeConfig:
    return NodeConfig(data=str(folder), native=Address("127.0.0.1", 0), **rest)  # type: ignore[arg-type]


class TestAccess:
    @pytest.mark.parametrize(
        ("settings", "verdict"),
        [
            (NodeConfig(), Verdict.WARNING),
            (NodeConfig(native=OPEN), Verdict.FAILURE),
            (NodeConfig(native=OPEN, security=Security(insecure=True)), Verdict.WARNING),
            (NodeConfig(native=OPEN, security=Security(authentication=True)), Verdict.OK),
        ],
    )
    def test_authentication(self, settings: NodeConfig, verdict: Verdict) -> None:
        assert access.authentication(settings).verdict is verdict

    def test_encryption(self, tmp_path: Path) -> None:
        assert access.encryption(NodeConfig()).verdict is Verdict.OK
        assert access.encryption(NodeConfig(native=OPEN)).verdict is Verdict.WARNING
        security = Authority(tmp_path).node()
        assert access.encryption(NodeConfig(native=OPEN, security=security)).verdict is Verdict.OK

    def test_secrets_in_the_metadata(self) -> None:
        cluster = Metadata(store="etcd")
        keyed = Security(key_file="node.key")
        assert "in clear" in access.stored_secrets(NodeConfig()).message
        assert access.stored_secrets(NodeConfig()).verdict is Verdict.OK
        assert access.stored_secrets(NodeConfig(metadata=cluster)).verdict is Verdict.WARNING
        found = access.stored_secrets(NodeConfig(metadata=cluster, security=keyed))
        assert found.verdict is Verdict.OK

    @pytest.mark.parametrize(("mode", "verdict"), [(0o600, Verdict.OK), (0o644, Verdict.WARNING)])
    def test_files_with_secrets_are_private(
        self, tmp_path: Path, mode: int, verdict: Verdict
    ) -> None:
        security = Authority(tmp_path).node()
        Path(security.tls_key).chmod(mode)
        token = tmp_path / "admin.token"
        token.touch()
        token.chmod(mode)
        found = access.private_files(config(tmp_path, security=security))
        assert [(one.check, one.verdict) for one in found] == [
            ("key file", verdict),
            ("token file", verdict),
        ]

    @pytest.mark.parametrize(("mode", "verdict"), [(0o700, Verdict.OK), (0o755, Verdict.WARNING)])
    def test_the_metadata_is_where_others_cannot_get_at_it(
        self, tmp_path: Path, mode: int, verdict: Verdict
    ) -> None:
        (tmp_path / "metadata.db").touch(mode=0o644)
        tmp_path.chmod(mode)
        (found,) = access.private_files(config(tmp_path))
        assert (found.check, found.verdict) == ("metadata", verdict)


class TestCertificate:
    def test_there_is_nothing_to_say_without_one(self, tmp_path: Path) -> None:
        assert certificate(config(tmp_path), NOW) is None

    def test_it_lasts_ends_soon_or_has_ended(self, tmp_path: Path) -> None:
        security = Authority(tmp_path).node()
        settings = config(tmp_path, security=security)
        ends = expiry(Path(security.tls_certificate).read_text())
        for moment, verdict in (
            (ends - timedelta(days=22), Verdict.OK),
            (ends - timedelta(days=20), Verdict.WARNING),
            (ends, Verdict.FAILURE),
        ):
            found = certificate(settings, moment)
            assert found is not None
            assert found.verdict is verdict
            assert ends.date().isoformat() in found.message

    def test_one_that_does_not_fit_its_key_cannot_be_used(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        security = authority.node()
        _, other = authority.issue("other", "other.example")
        mixed = Security(tls_certificate=security.tls_certificate, tls_key=other)
        found = certificate(config(tmp_path, security=mixed), NOW)
        assert found is not None
        assert found.verdict is Verdict.FAILURE

    @pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
    def test_what_is_no_certificate_has_no_end(self, text: str) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - of whatever reads it
            expiry(text)


class TestFolder:
    def test_a_folder_that_is_not_there_or_says_nothing_is_no_trouble(self, tmp_path: Path) -> None:
        for folder in (tmp_path / "none", tmp_path):
            assert version_of_folder(config(folder), "0.1.0").verdict is Verdict.OK

    def test_a_folder_of_this_version_can_be_opened_by_it(self, tmp_path: Path) -> None:
        found = FolderVersion(quiver="0.1.0", needs="0.1.0", formats={"entries": 1})
        (tmp_path / "version.json").write_bytes(encode_version(found))
        told = version_of_folder(config(tmp_path))
        assert (told.verdict, told.message) == (
            Verdict.OK,
            f"Quiver 0.1.0 used it last; every Quiver can open {tmp_path}",
        )

    def test_a_downgrade_that_would_not_open_is_told_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        newer = Format(name="entries", meaning="", since=("0.1.0", "0.3.0"))
        for module in (formats, folder_version):
            monkeypatch.setattr(module, "STORED", (newer,))
        found = FolderVersion(quiver="0.4.0", needs="0.3.0", formats={"entries": 2})
        (tmp_path / "version.json").write_bytes(encode_version(found))
        limit = f"Quiver older than 0.3.0 cannot open {tmp_path}, because it has entries 2"
        here = version_of_folder(config(tmp_path))
        assert (here.verdict, here.message) == (
            Verdict.OK,
            f"Quiver 0.4.0 used it last; {limit}",
        )
        assert version_of_folder(config(tmp_path), "0.3.0").verdict is Verdict.OK
        too_old = version_of_folder(config(tmp_path), "0.2.9")
        assert (too_old.verdict, too_old.message) == (Verdict.FAILURE, limit)
        assert "restore a backup" in too_old.advice

    def test_a_folder_of_a_newer_version_cannot_be_opened(self, tmp_path: Path) -> None:
        found = FolderVersion(quiver="9.1.0", needs="9.0.0", formats={"entries": 99})
        (tmp_path / "version.json").write_bytes(encode_version(found))
        told = version_of_folder(config(tmp_path))
        assert told.verdict is Verdict.FAILURE
        assert "entries 99" in told.message
        assert "9.0.0 or later" in told.advice

    def test_a_damaged_file_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "version.json").write_bytes(b"\0")
        assert version_of_folder(config(tmp_path)).verdict is Verdict.WARNING


class TestDisk:
    def test_room_is_compared_with_what_publishing_needs(self, tmp_path: Path) -> None:
        verdicts = [
            disk.free_space(config(tmp_path / "no" / "such", limits=Limits(free_bytes_min=least)))
            for least in (0, 1 << 50)
        ]
        assert [one.verdict for one in verdicts] == [Verdict.OK, Verdict.FAILURE]

    @pytest.mark.parametrize(
        ("seconds", "verdict"),
        [(0.001, Verdict.OK), (0.000001, Verdict.WARNING), (0.2, Verdict.WARNING)],
    )
    def test_a_sync_is_judged_by_its_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, verdict: Verdict
    ) -> None:
        monkeypatch.setattr(disk, "_sync_times", lambda _: [seconds])
        monkeypatch.setattr(disk, "_filesystem", lambda _: "ext4")
        assert disk.sync(config(tmp_path)).verdict is verdict

    def test_memory_is_no_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(disk, "_filesystem", lambda _: "tmpfs")
        assert disk.sync(config(tmp_path)).verdict is Verdict.WARNING

    def test_syncs_are_measured_and_leave_nothing(self, tmp_path: Path) -> None:
        assert all(seconds > 0 for seconds in disk._sync_times(str(tmp_path)))
        assert not list(tmp_path.iterdir())


class TestMachine:
    def test_a_port_in_use_is_told(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = Address("127.0.0.1", taken.getsockname()[1])
            found = machine.ports(NodeConfig(data=str(tmp_path), native=address))
            verdicts = {one.check: one.verdict for one in found}
            assert verdicts["native port"] is Verdict.WARNING

    def test_a_clock_in_the_past_is_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine.time, "time", lambda: 0.0)
        assert machine.clock().verdict is Verdict.FAILURE

    def test_few_open_files_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (256, 1024))
        assert machine.open_files(NodeConfig()).verdict is Verdict.WARNING
        few = NodeConfig(limits=Limits(connections_max=512))
        assert machine.open_files(few).verdict is Verdict.OK


class TestCommand:
    def test_it_ends_with_1_only_if_something_is_wrong(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        here = ["doctor", "--data", str(tmp_path), "--set", "native=127.0.0.1:0"]
        here += ["--set", "limits.free_bytes_min=0"]
        assert run(app, here) == ExitCode.OK
        assert "authentication" in capsys.readouterr().out
        assert run(app, [*here, "--strict"]) == ExitCode.FAILED
        assert run(app, [*here, "--set", "native=0.0.0.0:0"]) == ExitCode.FAILED
        capsys.readouterr()

    def test_it_looks_at_the_folder_for_another_version(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = FolderVersion(quiver="0.1.0", needs="0.1.0", formats={"entries": 1})
        (tmp_path / "version.json").write_bytes(encode_version(found))
        here = ["doctor", "--data", str(tmp_path), "--set", "native=127.0.0.1:0"]
        here += ["--set", "limits.free_bytes_min=0"]
        assert run(app, [*here, "--for", "0.1.0"]) == ExitCode.OK
        assert run(app, [*here, "--for", "0.0.9"]) == ExitCode.FAILED
        assert "do not go back to 0.0.9" in capsys.readouterr().out
        assert run(app, [*here, "--for", "old"]) == ExitCode.USAGE

    def test_it_speaks_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run(app, ["doctor", "--data", str(tmp_path), "--json"])
        found = json.loads(capsys.readouterr().out)
        assert {"check", "verdict", "message", "advice"} == set(found[0])
        assert os.listdir(tmp_path) == []

    def test_mistakes_in_the_settings_are_told_first(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(app, ["doctor", "--set", "nonsense=1"]) == ExitCode.USAGE
        assert "there is no setting" in capsys.readouterr().err
