"""Settings: where they come from, which source wins, and how each mistake is explained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.config import (
    Address,
    Given,
    Limits,
    NodeConfig,
    Quotas,
    Security,
    Web,
    load_config,
    parse_address,
)
from quiver.config.document import reference_page, resulting_settings, toml_document
from quiver.config.setting import settings_of
from quiver.config.toml_lines import key_lines, line_of
from quiver.errors import InvalidSetting
from tests.paths import REPOSITORY

SETTINGS = settings_of(NodeConfig)
REFERENCE = REPOSITORY / "docs/reference/settings.md"


def written(folder: Path, text: str) -> str:
    path = folder / "quiver.toml"
    path.write_text(text)
    return str(path)


def mistakes_of(
    path: str | None = None,
    environment: dict[str, str] | None = None,
    flags: tuple[Given, ...] = (),
) -> list[str]:
    with pytest.raises(InvalidSetting) as caught:
        load_config(path=path, environment=environment or {}, flags=flags)
    assert caught.value.details["mistakes"] == caught.value.message.splitlines()
    return caught.value.message.splitlines()


def mistake_in(tmp_path: Path, text: str) -> str:
    """The only mistake in a file, with the file's own name shortened."""
    path = written(tmp_path, text)
    (mistake,) = mistakes_of(path)
    assert mistake.startswith(path)
    return "file" + mistake.removeprefix(path)


class TestPrecedence:
    def test_without_any_source_everything_is_at_its_default(self) -> None:
        loaded = load_config(environment={})
        assert loaded.config == NodeConfig()
        assert set(loaded.origins.values()) == {"default"}

    def test_the_file_wins_over_defaults(self, tmp_path: Path) -> None:
        path = written(tmp_path, 'name = "a"\n\n[limits]\nconnections_max = 7\n')
        loaded = load_config(path=path, environment={})
        assert (loaded.config.name, loaded.config.limits.connections_max) == ("a", 7)
        assert loaded.origins["name"] == f"{path}:1"
        assert loaded.origins["limits.connections_max"] == f"{path}:4"
        assert loaded.origins["data"] == "default"

    def test_the_environment_wins_over_the_file(self, tmp_path: Path) -> None:
        path = written(tmp_path, "[limits]\nconnections_max = 7\n")
        loaded = load_config(path=path, environment={"QUIVER_LIMITS_CONNECTIONS_MAX": "8"})
        assert loaded.config.limits.connections_max == 8
        assert loaded.origins["limits.connections_max"] == "QUIVER_LIMITS_CONNECTIONS_MAX"

    def test_a_flag_wins_over_the_environment(self) -> None:
        loaded = load_config(
            environment={"QUIVER_DATA": "/env"},
            flags=[Given(setting="data", value="/flag", origin="--data")],
        )
        assert loaded.config.data == "/flag"
        assert loaded.origins["data"] == "--data"

    def test_the_last_of_two_flags_wins(self) -> None:
        flags = [Given(setting="data", value=value, origin="--set") for value in ("/a", "/b")]
        assert load_config(environment={}, flags=flags).config.data == "/b"

    @pytest.mark.process
    def test_importing_reads_no_environment(self) -> None:
        check = "import quiver.config as c; print(c.NodeConfig().data)"
        environment = {**os.environ, "QUIVER_DATA": "/nowhere"}
        told = subprocess.run(
            [sys.executable, "-c", check],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == "./data"


class TestWaysToWriteAValue:
    def test_sizes_and_times_carry_units_in_every_source(self, tmp_path: Path) -> None:
        path = written(tmp_path, '[limits]\nfree_bytes_min = "1GiB"\nidle_timeout_s = "10m"\n')
        environment = {
            "QUIVER_LIMITS_TAIL_BYTES_TOTAL": "64MiB",
            "QUIVER_LIMITS_DRAIN_TIMEOUT_S": "1m30s",
        }
        limits = load_config(path=path, environment=environment).config.limits
        assert (limits.free_bytes_min, limits.idle_timeout_s) == (1 << 30, 600.0)
        assert (limits.tail_bytes_total, limits.drain_timeout_s) == (64 << 20, 90.0)

    def test_bare_numbers_are_bytes_and_seconds(self, tmp_path: Path) -> None:
        path = written(tmp_path, "[limits]\nfree_bytes_min = 4096\nidle_timeout_s = 30\n")
        limits = load_config(
            path=path, environment={"QUIVER_LIMITS_FRAME_TIMEOUT_S": "2.5"}
        ).config.limits
        assert (limits.free_bytes_min, limits.idle_timeout_s) == (4096, 30.0)
        assert limits.frame_timeout_s == 2.5

    @pytest.mark.parametrize(
        "text",
        [
            "limits.connections_max = 7",
            "limits = { connections_max = 7 }",
            "[limits]\nconnections_max = 7",
            '["limits"]\n"connections_max" = 7',
        ],
    )
    def test_every_toml_spelling_of_a_table_is_understood(self, tmp_path: Path, text: str) -> None:
        path = written(tmp_path, text)
        assert load_config(path=path, environment={}).config.limits.connections_max == 7

    @pytest.mark.parametrize("text", ["127.0.0.1:7401", "[::1]:0", "broker-1.example:65535"])
    def test_an_address_reads_back_as_it_was_written(self, text: str) -> None:
        assert str(parse_address(text)) == text

    def test_an_ipv6_address_is_kept_without_its_brackets(self) -> None:
        assert parse_address("[::1]:7401") == Address("::1", 7401)

    @pytest.mark.parametrize(
        "text",
        ["", "7401", ":7401", "host:", "host:x", "host:-1", "::1:7401", "a b:1", "host:70000"],
    )
    def test_what_names_no_address_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidSetting, match="not an address"):
            parse_address(text)

    @given(st.text(max_size=40))
    def test_any_text_is_an_address_or_refused(self, text: str) -> None:
        try:
            address = parse_address(text)
        except InvalidSetting:
            return
        assert parse_address(str(address)) == address


class TestMistakes:
    def test_an_unknown_key_is_named_with_its_line_and_the_likely_one(self, tmp_path: Path) -> None:
        assert mistake_in(tmp_path, "\n[limits]\n# many\nconections_max = 3\n") == (
            "file:4: there is no setting limits.conections_max; did you mean limits.connections_max?"
        )

    def test_a_key_outside_its_table_is_sent_there(self, tmp_path: Path) -> None:
        assert mistake_in(tmp_path, "free_bytes_min = 3\n") == (
            "file:1: there is no setting free_bytes_min; did you mean limits.free_bytes_min?"
        )

    def test_an_unknown_table_is_one_mistake(self, tmp_path: Path) -> None:
        assert mistake_in(tmp_path, "[limit]\nconnections_max = 3\nrequests_max = 4\n") == (
            "file:1: there is no setting limit; did you mean limits?"
        )

    def test_a_value_where_a_table_belongs(self, tmp_path: Path) -> None:
        assert mistake_in(tmp_path, "limits = 3\n") == (
            "file:1: limits is a table: write [limits] and its settings below"
        )

    def test_a_key_like_nothing_known_gets_no_suggestion(self, tmp_path: Path) -> None:
        assert mistake_in(tmp_path, "zzz = 1\n") == "file:1: there is no setting zzz"

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('[limits]\nrequests_max = "5"', "limits.requests_max must be a whole number, not '5'"),
            ("[limits]\nrequests_max = 5.5", "limits.requests_max must be a whole number, not 5.5"),
            (
                "[limits]\nrequests_max = true",
                "limits.requests_max must be a whole number, not true",
            ),
            ("#\ndata = 5", "data must be text, not 5"),
            ("#\nnative = 7401", "native must be an address such as '127.0.0.1:7401', not 7401"),
            (
                "[limits]\nidle_timeout_s = []",
                "limits.idle_timeout_s must be a time such as 30 or '5m', not []",
            ),
            (
                "[limits]\nfree_bytes_min = 1.5",
                "limits.free_bytes_min must be a size such as 1048576 or '64MiB', not 1.5",
            ),
            (
                "[logging]\nlevel = 3",
                "logging.level must be one of debug, info, warning, error, not 3",
            ),
            (
                '[limits]\nfree_bytes_min = "lots"',
                "limits.free_bytes_min: 'lots' is not a size; write it as '10MB' or '256MiB'",
            ),
            (
                '[limits]\nidle_timeout_s = "soon"',
                "limits.idle_timeout_s: 'soon' is not a duration; write it as '30s', '1h30m' or '7d'",
            ),
        ],
    )
    def test_a_wrong_type_says_what_is_expected(
        self, tmp_path: Path, text: str, expected: str
    ) -> None:
        assert mistake_in(tmp_path, text) == f"file:2: {expected}"

    @pytest.mark.parametrize(
        ("variable", "value", "expected"),
        [
            ("LIMITS_CONNECTIONS_MAX", "0", "between 1 and 1,000,000, not 0"),
            ("LIMITS_REQUEST_BYTES_MAX", "1KiB", "between 1 MiB and 1 GiB, not '1KiB'"),
            ("LIMITS_IDLE_TIMEOUT_S", "-1m", "between 1 s and 86,400 s, not '-1m'"),
            ("LIMITS_IDLE_TIMEOUT_S", "nan", "'nan' is not a duration"),
            ("LOGGING_FORMAT", "xml", "one of auto, pretty, json, not 'xml'"),
            ("NAME", "a b", "name cannot be 'a b'"),
            ("NAME", "a\n", "name cannot be 'a\\n'"),
            ("DATA", "", "data must not be empty"),
            ("LIMITS_REQUESTS_MAX", "few", "a whole number, not 'few'"),
        ],
    )
    def test_a_value_out_of_bounds_says_the_bounds(
        self, variable: str, value: str, expected: str
    ) -> None:
        (mistake,) = mistakes_of(environment={f"QUIVER_{variable}": value})
        assert mistake.startswith(f"QUIVER_{variable}: ")
        assert expected in mistake

    def test_an_address_that_cannot_be_parsed(self) -> None:
        (mistake,) = mistakes_of(environment={"QUIVER_NATIVE": "localhost"})
        assert mistake.startswith(
            "QUIVER_NATIVE: native: 'localhost' is not an address; write it as"
        )

    def test_a_misspelt_variable_of_a_section(self) -> None:
        assert mistakes_of(environment={"QUIVER_LIMITS_REQUEST_MAX": "3"}) == [
            "QUIVER_LIMITS_REQUEST_MAX: there is no such setting; "
            "did you mean QUIVER_LIMITS_REQUESTS_MAX?"
        ]

    def test_variables_of_others_are_left_alone(self) -> None:
        environment = {
            "QUIVER_URL": "quiver://x",
            "QUIVER_PORT": "tcp://10.0.0.1:7400",
            "PATH": "/",
        }
        assert load_config(environment=environment).config == NodeConfig()

    def test_a_file_that_is_missing(self, tmp_path: Path) -> None:
        path = str(tmp_path / "none.toml")
        assert mistakes_of(path) == [f"{path}: cannot be read: No such file or directory"]

    def test_a_folder_instead_of_a_file(self, tmp_path: Path) -> None:
        assert mistakes_of(str(tmp_path)) == [f"{tmp_path}: cannot be read: Is a directory"]

    def test_a_file_that_is_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "quiver.toml"
        path.write_bytes(b"\xff\xfe")
        assert mistakes_of(str(path)) == [f"{path}: cannot be read: it is not UTF-8 text"]

    def test_a_file_that_is_far_too_large(self, tmp_path: Path) -> None:
        path = written(tmp_path, "#" * (1 << 20) + "\n")
        assert mistakes_of(path) == [f"{path}: a settings file has at most 1,048,576 bytes"]

    def test_a_file_that_is_not_toml(self, tmp_path: Path) -> None:
        assert mistake_in(tmp_path, "data = 'x'\nname 'y'\n").startswith("file:2: not TOML: ")

    def test_mistakes_of_all_sources_are_reported_together(self, tmp_path: Path) -> None:
        path = written(tmp_path, "x = 1\n[limits]\nrequests_max = 0\n")
        found = mistakes_of(
            path,
            {"QUIVER_NATIVE": "?"},
            (Given(setting="nam", value="a", origin="--set"),),
        )
        assert [re.match(r"[^:]*(:\d+)?", mistake)[0] for mistake in found] == [  # type: ignore[index]
            f"{path}:1",
            f"{path}:3",
            "QUIVER_NATIVE",
            "--set",
        ]

    @pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
    def test_a_variable_says_true_or_false(self, text: str, value: bool) -> None:
        loaded = load_config(environment={"QUIVER_SECURITY_AUTHENTICATION": text})
        assert loaded.config.security.authentication is value

    def test_anything_else_is_neither_true_nor_false(self) -> None:
        (mistake,) = mistakes_of(None, {"QUIVER_SECURITY_AUTHENTICATION": "yes"})
        assert "must be true or false" in mistake

    @pytest.mark.parametrize(
        "half",
        [
            {"tls_certificate": "a.pem"},
            {"tls_key": "a.key"},
            {"tls_client_ca": "ca.pem"},
            {"tls_certificate": "a", "tls_key": "b", "tls_client_required": True},
        ],
    )
    def test_half_of_what_tls_needs_is_a_mistake(self, half: dict[str, Any]) -> None:
        with pytest.raises(InvalidSetting, match=r"security\.tls"):
            Security(**half)

    def test_an_object_out_of_bounds_cannot_be_made(self) -> None:
        with pytest.raises(InvalidSetting, match="connections_max must be between"):
            Limits(connections_max=0)
        with pytest.raises(InvalidSetting, match="name cannot be"):
            NodeConfig(name="")


class TestDefinitions:
    @pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
    def test_each_has_a_sentence_and_a_default_within_its_bounds(self, setting: object) -> None:
        assert isinstance(setting, type(SETTINGS[0]))
        assert setting.description.endswith(".")
        setting.check(setting.default)
        if isinstance(setting.default, int | float) and setting.type is not bool:
            assert setting.meta.ge is not None
            assert setting.meta.le is not None
            unit = (
                r"bytes|_s$|_per_second$|(connections|requests|messages|topics|names)_max$"
                r"|^processes$|_port$"
            )
            assert re.search(unit, setting.field), "has no unit"

    def test_the_commented_file_holds_every_setting_at_its_default(self, tmp_path: Path) -> None:
        document = toml_document()
        sections = ("logging", "limits", "security", "quotas", "web", "metadata")
        observability = ("metrics", "alerts")
        assert tomllib.loads(document) == {section: {} for section in (*sections, *observability)}
        uncommented = re.sub(r"^# (?=\w+ = )", "", document, flags=re.MULTILINE)
        loaded = load_config(path=written(tmp_path, uncommented), environment={})
        assert loaded.config == NodeConfig()
        assert "default" not in loaded.origins.values()

    def test_resulting_settings_name_every_setting_once(self) -> None:
        rows = list(resulting_settings(load_config(environment={"QUIVER_NAME": "b"})))
        assert [name for name, _, _ in rows] == [setting.name for setting in SETTINGS]
        assert rows[0] == ("name", '"b"', "QUIVER_NAME")

    def test_the_reference_page_is_up_to_date(self) -> None:
        assert REFERENCE.read_text() == reference_page(), (
            "write it anew: python -m quiver.config.document > docs/reference/settings.md"
        )


class TestLines:
    def test_a_key_is_found_in_its_table_only(self) -> None:
        lines = key_lines("[a]\nx = 1\n[b]\nx = 2\n")
        assert line_of(lines, "b.x") == 4

    def test_a_key_inside_an_inline_table_is_where_that_begins(self) -> None:
        assert line_of(key_lines("\na = { x = 1 }\n"), "a.x") == 2

    def test_what_is_not_there_has_no_line(self) -> None:
        assert line_of(key_lines("a = 1\n"), "b") is None


class TestQuotasOfPrincipals:
    def test_what_a_table_leaves_out_is_as_for_everybody(self, tmp_path: Path) -> None:
        file = tmp_path / "quiver.toml"
        file.write_text(
            "[quotas]\nconnections_max = 5\n"
            '[quotas.principals.importer]\nbytes_per_second = "1MiB"\n'
            '[quotas.principals."team a"]\nconnections_max = 0\n'
        )
        environment = {"QUIVER_QUOTAS_REQUESTS_PER_SECOND": "7"}
        config = load_config(path=str(file), environment=environment).config
        assert config.quotas == Quotas(connections_max=5, requests_per_second=7)
        assert config.principal_quotas == {
            "importer": Quotas(connections_max=5, requests_per_second=7, bytes_per_second=1 << 20),
            "team a": Quotas(requests_per_second=7),
        }

    @pytest.mark.parametrize(
        ("text", "mistake"),
        [
            ("principals = 1", "quiver.toml:2: quotas of principals are tables"),
            (
                "principals.a.topics = 1",
                "quotas.principals.a: there is no setting 'topics'; did you mean",
            ),
            ("principals.a.topics_max = -1", "quotas.principals.a: topics_max must be between"),
        ],
    )
    def test_mistakes_are_told_with_their_place(
        self, tmp_path: Path, text: str, mistake: str
    ) -> None:
        file = tmp_path / "quiver.toml"
        file.write_text(f"[quotas]\n{text}\n")
        with pytest.raises(InvalidSetting, match=re.escape(mistake)):
            load_config(path=str(file), environment={})


@pytest.mark.parametrize(
    "targets",
    [
        "",
        "hooks.example.com",
        "*.example.com, 10.1.0.0/16",
        "127.0.0.1",
        "::1,fe80::/10",
        "localhost",
    ],
)
def test_targets_of_webhooks_are_hosts_and_networks(targets: str) -> None:
    assert Web(webhook_targets=targets).webhook_targets == targets


@pytest.mark.parametrize(
    "targets",
    [
        "https://hooks.example.com",
        "hooks.example.com:443",
        "10.1.0.0/99",
        "10.1.0.0.0",
        "a b",
        "x,/y",
    ],
)
def test_a_target_of_webhooks_that_is_neither_is_refused_when_it_is_given(targets: str) -> None:
    with pytest.raises(InvalidSetting, match=r"webhook_targets: .* is neither a host"):
        Web(webhook_targets=targets)
