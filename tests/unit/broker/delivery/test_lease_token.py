"""Lease tokens: signed, bound to one delivery, good over a restart."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.broker.delivery.lease_token import (
    LeaseToken,
    TokenSigner,
    lease_ids,
    receipt_secret,
)
from quiver.cluster.metadata.secret import SECRET_BYTES
from quiver.cluster.metadata.secret_key import SecretKey
from quiver.cluster.metadata.sqlite import SqliteStore
from quiver.errors import InvalidReceipt
from quiver.model.receipt import LEASE_BYTES, place_of
from quiver.testing.clock import ManualClock
from tests.aio import async_test

SIGNER = TokenSigner(bytes(SECRET_BYTES))
TOKENS = st.builds(
    LeaseToken,
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 16) - 1),
    st.integers(0, (1 << 64) - 1),
)


@given(TOKENS)
def test_a_token_says_what_was_signed(token: LeaseToken) -> None:
    data = SIGNER.sign(token)
    assert len(data) == LEASE_BYTES
    assert SIGNER.verify(data) == token
    assert place_of(data) == (token.topic, token.partition)


@given(TOKENS, st.integers(0, LEASE_BYTES * 8 - 1))
def test_a_token_with_any_other_bit_is_refused(token: LeaseToken, bit: int) -> None:
    data = bytearray(SIGNER.sign(token))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidReceipt):
        SIGNER.verify(bytes(data))


@given(st.binary(max_size=40))
def test_bytes_that_nobody_signed_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidReceipt):
        SIGNER.verify(data)


def test_a_token_of_another_secret_is_refused() -> None:
    other = TokenSigner(b"x" * SECRET_BYTES)
    with pytest.raises(InvalidReceipt):
        SIGNER.verify(other.sign(LeaseToken(1, 2, 3, 4)))


def test_two_starts_give_out_different_lease_ids() -> None:
    first, second = (set(islice(lease_ids(), 1000)) for _ in range(2))
    assert len(first) == 1000
    assert first.isdisjoint(second)
    assert all(0 < lease_id < 1 << 63 for lease_id in first)


@async_test
async def test_the_secret_is_made_once(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "metadata.db"), ManualClock())
    try:
        secret = await receipt_secret(store, SecretKey())
        assert len(secret) == SECRET_BYTES
        assert await receipt_secret(store, SecretKey()) == secret
    finally:
        await store.close()
