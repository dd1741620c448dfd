"""A node with a key: what its metadata holds opens nothing without the key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import quiver
from quiver.broker.delivery.lease_token import _FIELDS, LeaseToken, TokenSigner, receipt_secret
from quiver.cluster.metadata.secret_key import SecretKey
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.errors import InvalidReceipt
from quiver.model.clock import SystemClock
from quiver.model.receipt import receipt
from tests.serving import Served, served

pytestmark = pytest.mark.process


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "node.key"
    file.write_text("5d" * 32)
    file.chmod(0o600)
    return file


def test_receipts_outlive_a_restart_and_cannot_be_forged_with_the_metadata(
    tmp_path: Path, key: Path
) -> None:
    flags = ("--key-file", str(key))
    with served(tmp_path / "node", *flags) as node, quiver.Client(node.url) as q:
        q.create_queue("jobs", guarantee="exactly-once")
        q.publish_many("jobs", ["first", "second"])
        first, second = q.receive("jobs", 2, visibility="10m")
        node.stop()
    forged = asyncio.run(_signed_anew(tmp_path / "node" / "data" / "metadata.db", second.lease))
    with served(tmp_path / "node", *flags) as node, quiver.Client(node.url) as q:
        q.ack("jobs", [first.receipt])
        with pytest.raises(InvalidReceipt):
            q.ack("jobs", [receipt(forged, second.offset)])
        q.ack("jobs", [second.receipt])


async def _signed_anew(database: Path, lease: bytes) -> bytes:
    """The lease with the signature of somebody who has the metadata, and not the key."""
    store = await SqliteStore.open(str(database), SystemClock())
    try:
        signer = TokenSigner(await receipt_secret(store, SecretKey()))
        return signer.sign(LeaseToken(*_FIELDS.unpack(lease[: _FIELDS.size])))
    finally:
        await store.close()


def test_a_node_without_its_key_says_what_is_missing(tmp_path: Path, key: Path) -> None:
    with served(tmp_path / "node", "--key-file", str(key)):
        pass
    for flags in ((), ("--key-file", str(_other(tmp_path)))):
        node = Served(tmp_path / "node", *flags)
        try:
            assert node.wait() == 2
            assert "security.key_file" in node.log
        finally:
            node.close()


def _other(folder: Path) -> Path:
    file = folder / "other.key"
    file.write_text("7e" * 32)
    file.chmod(0o600)
    return file
