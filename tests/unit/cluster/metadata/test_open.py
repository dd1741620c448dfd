"""From settings to a metadata store: what is opened, and which settings are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiver.cluster.metadata.etcd.open import etcd_settings
from quiver.cluster.metadata.open import open_store
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.config import Metadata
from quiver.errors import InvalidSetting, MetadataUnavailable
from quiver.testing.clock import ManualClock
from tests.aio import async_test
from tests.ports import free_port


@async_test
async def test_without_any_setting_it_is_a_file_in_the_folder(tmp_path: Path) -> None:
    store = await open_store(Metadata(), str(tmp_path), ManualClock())
    await store.close()
    assert isinstance(store, SqliteStore)
    assert (tmp_path / "metadata.db").exists()


@async_test
async def test_etcd_is_asked_for_where_the_settings_say(tmp_path: Path) -> None:
    settings = Metadata(store="etcd", endpoints=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(MetadataUnavailable):
        await open_store(settings, str(tmp_path), ManualClock())
    assert os.listdir(tmp_path) == []


def test_endpoints_are_split_at_commas() -> None:
    settings = etcd_settings(Metadata(store="etcd", endpoints="http://a:1, http://b:2 ,"))
    assert settings.endpoints == ("http://a:1", "http://b:2")
    assert settings.tls is None


@pytest.mark.parametrize("endpoints", ["a:2379", ",", "http://a:1,https://b:1", "ftp://a"])
def test_endpoints_that_make_no_sense_are_refused(endpoints: str) -> None:
    with pytest.raises(InvalidSetting, match=r"metadata\.endpoints"):
        etcd_settings(Metadata(store="etcd", endpoints=endpoints))


def test_the_password_is_what_the_file_holds_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("open sesame\n")
    settings = Metadata(store="etcd", username="u", password_file=str(path))
    assert etcd_settings(settings).password == "open sesame"


@pytest.mark.parametrize("field", ["password_file", "ca_file", "cert_file"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, field: str) -> None:
    settings = Metadata(store="etcd", endpoints="https://a:1", **{field: str(tmp_path / "missing")})
    with pytest.raises(InvalidSetting, match=field):
        etcd_settings(settings)
