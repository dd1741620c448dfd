"""Lease tokens: what a consumer shows to settle the messages it was given.

A token names one delivery: subscription, partition and lease. It is signed, so that a consumer can
neither forge one nor use one for another queue. With an offset behind it, it is a message's receipt.
"""

from __future__ import annotations

import base64
import hmac
import struct
from hashlib import blake2b

import msgspec

from quiver.errors import InvalidReceipt
from quiver.model.ids import Offset

SECRET_BYTES = 32
_FIELDS = struct.Struct("<IIHQ")
_SIGNATURE_BYTES = 8
TOKEN_BYTES = _FIELDS.size + _SIGNATURE_BYTES


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
        if len(data) != TOKEN_BYTES or not hmac.compare_digest(self._signature(fields), signature):
            raise InvalidReceipt("this is not a receipt that Quiver gave out")
        return LeaseToken(*_FIELDS.unpack(fields))

    def _signature(self, fields: bytes) -> bytes:
        return blake2b(fields, digest_size=_SIGNATURE_BYTES, key=self._secret).digest()


def receipt_text(token: bytes, offset: Offset) -> str:
    """A message's receipt, safe in a URL."""
    return f"{base64.urlsafe_b64encode(token).decode().rstrip('=')}.{offset}"


def parse_receipt(text: str) -> tuple[bytes, Offset]:
    """The token and the offset in a receipt; whether the token is genuine is for the node to say."""
    token, _, offset = text.partition(".")
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except ValueError:
        data = b""
    if len(data) != TOKEN_BYTES or not (offset.isascii() and offset.isdigit() and len(offset) < 20):
        raise InvalidReceipt(f"not a receipt: {text[:80]!r}")
    return data, Offset(int(offset))
