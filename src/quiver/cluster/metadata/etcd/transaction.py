"""A commit as an etcd transaction, and the keys under the cluster's prefix."""

from __future__ import annotations

from collections.abc import Sequence

from quiver.cluster.metadata.etcd.messages import Request, TxnReply
from quiver.cluster.metadata.store import Delete, Expect, Put
from quiver.errors import MetadataConflict


class Keys:
    """Inside, a key is what the store's user calls it; outside, it carries the cluster's prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def outside(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def inside(self, key: bytes) -> str:
        return key[len(self._prefix) :].decode()

    def span(self, prefix: str) -> tuple[bytes, bytes]:
        """The first key under the prefix, and the first after them all."""
        start = self.outside(prefix)
        # No byte of UTF-8 is 0xFF, so adding one to the last never overflows. NUL to NUL is etcd's
        # way of saying every key.
        return (start, start[:-1] + bytes([start[-1] + 1])) if start else (b"\0", b"\0")


def transaction(expects: Sequence[Expect], changes: Sequence[Put | Delete], keys: Keys) -> Request:
    """If all hold, make the changes; if not, say at which revision each expected key is."""
    return {
        "compare": [
            {
                "key": keys.outside(expect.key),
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": expect.revision,
            }
            for expect in expects
        ],
        "success": [_operation(change, keys) for change in changes],
        "failure": [
            {"request_range": {"key": keys.outside(expect.key), "keys_only": True}}
            for expect in expects
        ],
    }


def conflict_in(expects: Sequence[Expect], reply: TxnReply) -> MetadataConflict:
    """Which expectation did not hold."""
    for expect, outcome in zip(expects, reply.responses, strict=True):
        found = outcome.response_range
        revision = found.kvs[0].mod_revision if found is not None and found.kvs else 0
        if revision != expect.revision:
            return MetadataConflict(
                f"{expect.key!r} is at revision {revision:,}, not {expect.revision:,}: "
                "read it again and retry",
                key=expect.key,
                expected=expect.revision,
                revision=revision,
            )
    raise AssertionError("etcd refused a transaction all of whose expectations hold")


def _operation(change: Put | Delete, keys: Keys) -> Request:
    key = keys.outside(change.key)
    if isinstance(change, Delete):
        return {"request_delete_range": {"key": key}}
    put: Request = {"key": key, "value": change.value}
    if change.lease is not None:
        put["lease"] = change.lease
    return {"request_put": put}
