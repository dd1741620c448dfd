"""Settings that would make a node fail when it starts, or that it would ignore, are found before."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from quiver.config import NodeConfig
from quiver.config.load import Given, load_config
from quiver.config.setting import Setting, settings_of
from quiver.edge.preflight import mistakes_in, require_startable
from quiver.errors import InvalidSetting


def _config(**given: str) -> NodeConfig:
    flags = [
        Given(setting=name.replace("__", "."), value=value, origin="--set")
        for name, value in given.items()
    ]
    return load_config(environment={}, flags=flags).config


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "exposed": ({"native": "0.0.0.0:7401"}, "native (0.0.0.0:7401) can be reached"),
    "certificate": (
        {"security__tls_certificate": "no.pem", "security__tls_key": "no.key"},
        "no.pem",
    ),
    "admins": ({"security__admins": "ops"}, "security.tls_client_ca"),
    "origins": ({"web__cors_origins": "app.example.com"}, "'app.example.com' is not an origin"),
    "origin path": ({"web__cors_origins": "https://a.example.com/x"}, "is not an origin"),
    "secrets": ({"web__webhook_secrets": "no-folder"}, "'no-folder' is not a folder"),
    "same address": ({"http": "127.0.0.1:7000", "native": "127.0.0.1:7000"}, "127.0.0.1:7000"),
    "processes on etcd": ({"processes": "2", "metadata__store": "etcd"}, "metadata.store is etcd"),
    "processes of a forwarder": (
        {"role": "forwarder", "upstream": "quiver://a:1", "processes": "2"},
        "start several forwarders",
    ),
    "no upstream": ({"role": "forwarder"}, "needs upstream"),
    "upstream of a broker": ({"upstream": "quiver://a:1"}, "set role to forwarder"),
    "upstream": ({"role": "forwarder", "upstream": "http://a:1"}, "'http://a:1'"),
    "no key": ({"security.key_file": "nowhere.key"}, "'nowhere.key' cannot be read"),
    "webhook": ({"alerts__webhook": "hooks.example.com"}, "'hooks.example.com'"),
    "webhook port": ({"alerts__webhook": "https://[::1/"}, "alerts.webhook must be a URL"),
    "webhook target": (
        {"alerts__webhook": "https://hooks.example.com/"},
        "does not allow webhooks to 'hooks.example.com'",
    ),
    "advertise": ({"advertise": "a b:7401"}, "advertise: 'a b:7401'"),
    "advertise port": ({"advertise": "a:99999"}, "advertise: 'a:99999'"),
    "etcd without store": ({"metadata__endpoints": "http://a:2379"}, "metadata.store to etcd"),
    "endpoints": (
        {"metadata__store": "etcd", "metadata__endpoints": "a:2379"},
        "'a:2379'",
    ),
    "no endpoint": ({"metadata__store": "etcd", "metadata__endpoints": ","}, "at least one"),
    "password": (
        {"metadata__store": "etcd", "metadata__username": "a", "metadata__password_file": "none"},
        "metadata.password_file cannot be read",
    ),
    "no password": ({"metadata__store": "etcd", "metadata__username": "a"}, "password_file"),
    "no user": ({"metadata__store": "etcd", "metadata__password_file": os.devnull}, "username"),
    "key": ({"metadata__store": "etcd", "metadata__key_file": "a"}, "metadata.cert_file"),
    "plain etcd": ({"metadata__store": "etcd", "metadata__ca_file": "a"}, "is for https"),
    "ca": (
        {
            "metadata__store": "etcd",
            "metadata__endpoints": "https://a:2379",
            "metadata__ca_file": "no",
        },
        "cannot be used",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_found_and_named(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given, expected = WRONG[case]
    (mistake,) = mistakes_in(_config(**given))
    assert expected in mistake
    assert list(tmp_path.iterdir()) == []


def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for data in (tmp_path / "file", tmp_path / "file" / "data"):
        (mistake,) = mistakes_in(_config(data=str(data)))
        assert mistake == f"data: {str(tmp_path / 'file')!r} is not a folder"


def test_control_characters_are_refused() -> None:
    for name in ("data", "zone", "upstream", "web__webhook_secrets"):
        with pytest.raises(InvalidSetting, match="control characters"):
            _config(**{name: "a\x00b"})


def test_every_mistake_is_listed(tmp_path: Path) -> None:
    config = _config(native="0.0.0.0:1", web__cors_origins="a", web__webhook_secrets="none")
    with pytest.raises(InvalidSetting) as refused:
        require_startable(config)
    assert len(refused.value.message.splitlines()) == 3


def test_settings_that_are_right_pass(tmp_path: Path) -> None:
    right: list[dict[str, Any]] = [
        {},
        {"data": str(tmp_path / "new" / "data")},
        {"http": "127.0.0.1:0", "native": "127.0.0.1:0"},
        {"web__cors_origins": "https://a.example.com, http://localhost:3000,*"},
        {"web__webhook_secrets": str(tmp_path)},
        {"role": "forwarder", "upstream": "quiver://a:1,b"},
        {"role": "forwarder", "upstream": "quiver://a:1", "http": "off"},
        {
            "alerts__webhook": "https://hooks.example.com/x",
            "web__webhook_targets": "*.example.com",
        },
        {"metadata__store": "etcd", "advertise": "node-1.example.com"},
        {"metadata__store": "etcd", "advertise": "[::1]:7401"},
    ]
    for given in right:
        assert list(mistakes_in(_config(**given))) == [], given


ODD: list[Any] = [
    *("", " ", "x", "-1", "0", "1e999", "nan", "true", "1h", "1GB", "/", "a,b", "\x00", "é" * 5000),
    *(True, -1, 0, 1 << 70, 1.5, float("nan"), float("inf"), [], ["a"], {}, {"a": 1}, None),
]


@pytest.mark.parametrize("setting", settings_of(NodeConfig), ids=lambda one: one.name)
def test_no_value_of_any_setting_fails_in_another_way_than_by_being_refused(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ODD:
        for is_text in {isinstance(value, str), False}:
            given = Given(setting=setting.name, value=value, origin="here", is_text=is_text)
            with contextlib.suppress(InvalidSetting):
                require_startable(load_config(environment={}, flags=[given]).config)
