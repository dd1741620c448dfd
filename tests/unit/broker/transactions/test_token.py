"""Tokens of transactions: good for one producer, one principal and one name."""

from __future__ import annotations

import pytest

from quiver.broker.delivery.lease_token import TokenSigner
from quiver.broker.transactions.token import TransactionTokens
from quiver.cluster.metadata.secret import SECRET_BYTES
from quiver.errors import PermissionDenied
from quiver.model.ids import ProducerId

TOKENS = TransactionTokens(TokenSigner(b"a" * SECRET_BYTES))
OTHERS = TransactionTokens(TokenSigner(b"b" * SECRET_BYTES))
TOKEN = TOKENS.token(ProducerId(7), "ann", "billing")


def test_whoever_was_given_a_token_is_let_in() -> None:
    TOKENS.require(TOKEN, ProducerId(7), "ann")
    TOKENS.require_name(TOKEN, "billing")


@pytest.mark.parametrize(
    ("token", "producer", "principal"),
    [
        (TOKEN, 8, "ann"),
        (TOKEN, 7, "bob"),
        (b"", 7, "ann"),
        (bytes(8) + TOKEN[8:], 7, "ann"),
        (OTHERS.token(ProducerId(7), "ann", "billing"), 7, "ann"),
    ],
    ids=["another producer", "another principal", "no token", "another name", "another cluster"],
)
def test_others_are_refused(token: bytes, producer: int, principal: str) -> None:
    with pytest.raises(PermissionDenied):
        TOKENS.require(token, ProducerId(producer), principal)


@pytest.mark.parametrize("name", [None, "", "audit"])
def test_nobody_commits_under_another_name_than_they_began(name: str | None) -> None:
    with pytest.raises(PermissionDenied):
        TOKENS.require_name(TOKEN, name)
