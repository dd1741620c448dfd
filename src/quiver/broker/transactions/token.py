"""Tokens of transactions: who was given a producer may end its transactions, and nobody else."""

from __future__ import annotations

import hmac
from hashlib import blake2b

from quiver.broker.delivery.lease_token import TokenSigner
from quiver.errors import PermissionDenied
from quiver.model.ids import ProducerId

_PURPOSE = b"transactions"
_NAME_BYTES = 8


class TransactionTokens:
    """A token has a fingerprint of the name, and is signed together with producer and principal."""

    def __init__(self, signer: TokenSigner) -> None:
        self._signer = signer

    def token(self, producer: ProducerId, principal: str, name: str | None) -> bytes:
        return self._signed(producer, principal, _fingerprint(name))

    def require(self, token: bytes, producer: ProducerId, principal: str) -> None:
        """``PermissionDenied`` unless it was given out with this producer, to this principal."""
        expected = self._signed(producer, principal, token[:_NAME_BYTES])
        if not hmac.compare_digest(token, expected):
            raise PermissionDenied(
                "the token does not belong to this transaction: use the one that it was begun with"
            )

    def require_name(self, token: bytes, name: str | None) -> None:
        """``PermissionDenied`` unless the token was given out under this name: it decides who is fenced."""
        if token[:_NAME_BYTES] != _fingerprint(name):
            raise PermissionDenied("the transaction was begun under another name: give that one")

    def _signed(self, producer: ProducerId, principal: str, fingerprint: bytes) -> bytes:
        fields = fingerprint + f"{producer}\0{principal}".encode()
        return fingerprint + self._signer.signature(_PURPOSE, fields)


def _fingerprint(name: str | None) -> bytes:
    if name is None:
        return bytes(_NAME_BYTES)
    return blake2b(name.encode(), digest_size=_NAME_BYTES).digest()
