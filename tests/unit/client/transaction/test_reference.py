"""The text of a transaction: all that a node needs, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.client.transaction.reference import (
    NAME_BYTES_MAX,
    TEXT_LENGTH_MAX,
    TransactionReference,
    number_in,
    reference_in,
)
from quiver.errors import TransactionNotFound
from quiver.model.transaction import TransactionId

NUMBERS = st.integers(1, (1 << 63) - 1).map(TransactionId)
NAMES = st.none() | st.text(min_size=1, max_size=NAME_BYTES_MAX // 4)


@given(NUMBERS, st.integers(1, 900_000), st.binary(min_size=8, max_size=32), NAMES)
def test_a_text_has_all_of_a_transaction(
    number: TransactionId, timeout_ms: int, token: bytes, name: str | None
) -> None:
    reference = TransactionReference(number, timeout_ms, token, name)
    assert reference_in(reference.text) == reference
    assert number_in(reference.text) == number
    assert len(reference.text) <= TEXT_LENGTH_MAX


def test_the_longest_name_fits_into_a_header() -> None:
    reference = TransactionReference(TransactionId(1), 1, bytes(16), "x" * NAME_BYTES_MAX)
    assert len(reference.text) <= TEXT_LENGTH_MAX


@given(st.text(max_size=60) | st.text("tx_AZaz09-_=", max_size=60))
def test_any_other_text_is_no_transaction(text: str) -> None:
    try:
        found = reference_in(text)
    except TransactionNotFound:
        return
    assert found.text == text


@pytest.mark.parametrize("text", ["", "tx_", "tx_AAAA", "7", "tx_" + "A" * 300, "tx_é", "../x"])
def test_wrong_texts_are_refused(text: str) -> None:
    with pytest.raises(TransactionNotFound, match="is not the id of a transaction"):
        reference_in(text)


@pytest.mark.parametrize("text", ["0", "-1", "9223372036854775808", "1" * 30, "\uff11", "7.0"])
def test_wrong_numbers_are_refused(text: str) -> None:
    with pytest.raises(TransactionNotFound):
        number_in(text)


def test_a_number_is_taken_as_it_is() -> None:
    assert number_in("4296015872") == 4296015872
