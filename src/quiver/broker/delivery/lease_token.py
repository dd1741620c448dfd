"""Lease tokens: a consumer presents one to settle the messages it received.

A token names one delivery: subscription, partition and lease. It is signed, so that a consumer can
neither forge one nor use it for another queue.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

import msgspec

from quiver.cluster.metadata.secret import SECRET_BYTES, kept_secret
from quiver.cluster.metadata.secret_key import SecretKey
from quiver.cluster.metadata.store import MetadataStore
from quiver.errors import InvalidReceipt
from quiver.model.receipt import LEASE_BYTES

SECRET = "secrets/receipts"  # noqa: S105 - a key in the metadata store
_FIELDS = struct.Struct("<IIHQ")
_SIGNATURE_BYTES = 8
assert _FIELDS.size + _SIGNATURE_BYTES == LEASE_BYTES


class LeaseToken(msgspec.Struct, frozen=True):
    subscription: int
    topic: int
    partition: int
    lease_id: int


class TokenSigner:
    """Signs with the node's secret, which outlives it: a receipt stays good over a restart."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == SECRET_BYTES
        self._secret = secret

    def sign(self, token: LeaseToken) -> bytes:
        fields = _FIELDS.pack(token.subscription, token.topic, token.partition, token.lease_id)
        return fields + self._signature(fields)

    def verify(self, data: bytes) -> LeaseToken:
        fields, signature = data[: _FIELDS.size], data[_FIELDS.size :]
        if len(data) != LEASE_BYTES or not hmac.compare_digest(self._signature(fields), signature):
            raise InvalidReceipt("the receipt is not valid")
        return LeaseToken(*_FIELDS.unpack(fields))

    def signature(self, purpose: bytes, data: bytes) -> bytes:
        """What shows that this cluster has given something else out, for another purpose."""
        return blake2b(data, digest_size=16, key=self._secret, person=purpose).digest()

    def _signature(self, fields: bytes) -> bytes:
        return blake2b(fields, digest_size=_SIGNATURE_BYTES, key=self._secret).digest()


async def receipt_secret(store: MetadataStore, key: SecretKey) -> bytes:
    """The secret that signs receipts."""
    return key.secret_of(await kept_secret(store, SECRET))


def lease_ids() -> Iterator[int]:
    """Ids of leases that no other start of a node gives out."""
    return count(int.from_bytes(os.urandom(4), "little") >> 1 << 32 | 1)


class LeaseIssuer(NamedTuple):
    """What leases are given out with."""

    signer: TokenSigner
    ids: Iterator[int]
