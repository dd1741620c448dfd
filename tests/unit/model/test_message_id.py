"""Message ids: they come back as they were, and their text sorts as they do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.errors import InvalidRequest
from quiver.model.ids import Microseconds, Offset, PartitionIndex
from quiver.model.message_id import MessageId, parse_message_id

ids = st.builds(
    MessageId,
    append_time=st.integers(0, (1 << 56) - 1).map(Microseconds),
    topic=st.integers(0, (1 << 32) - 1),
    partition=st.integers(0, (1 << 16) - 1).map(PartitionIndex),
    offset=st.integers(0, (1 << 56) - 1).map(Offset),
)


@settings(max_examples=50)
@given(ids)
def test_an_id_comes_back_from_its_text(message_id: MessageId) -> None:
    assert parse_message_id(str(message_id)) == message_id


@settings(max_examples=50)
@given(ids, ids)
def test_text_sorts_as_the_ids_do(one: MessageId, other: MessageId) -> None:
    assert (one < other) == (str(one) < str(other))


@settings(max_examples=50)
@given(ids)
def test_text_is_thirty_two_letters_and_digits(message_id: MessageId) -> None:
    text = str(message_id)
    assert len(text) == 32
    assert text.isalnum()
    assert text == text.lower()


def test_the_text_of_an_id_never_changes() -> None:
    message_id = MessageId(
        Microseconds(1_700_000_000_000_000), 7, PartitionIndex(3), Offset(123_456)
    )
    assert str(message_id) == "0o52860u800000000s00600000003oi0"


def test_capital_letters_are_read_too() -> None:
    message_id = MessageId(Microseconds(1), 2, PartitionIndex(3), Offset(4))
    assert parse_message_id(str(message_id).upper()) == message_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "z" * 32,
        "0" * 31,
        "0" * 33,
        "0" * 40,
        "=" * 32,
        "ß" * 16,
        "\u017f" + "0" * 31,
        "é" * 32,
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not a message id"):
        parse_message_id(text)
