"""Fields of a newer version stay with the record, at whatever depth."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from quiver.broker.topics.unknown_fields import encoded, unknown_fields


class Group(msgspec.Struct, frozen=True):
    age: int = 1


class Record(msgspec.Struct, frozen=True):
    name: str
    group: Group | None = Group()
    starts: dict[str, int] = {}


decode = msgspec.msgpack.Decoder(Record).decode
FIELDS = st.dictionaries(st.sampled_from(["new", "newer"]), st.integers(0, 9) | st.text())


def stored(record: Record, outside: dict[str, object], inside: dict[str, object]) -> bytes:
    fields = msgspec.to_builtins(record)
    if fields["group"] is not None:
        fields["group"] |= inside
    return msgspec.msgpack.encode(fields | outside)


@given(
    outside=FIELDS,
    inside=FIELDS,
    age=st.integers(0, 9),
    starts=st.dictionaries(st.text(), st.integers(0, 9)),
)
def test_what_is_changed_is_changed_and_the_rest_is_as_it_was(
    outside: dict[str, object], inside: dict[str, object], age: int, starts: dict[str, int]
) -> None:
    before = stored(Record("a", starts={"x": 1}), outside, inside)
    record = decode(before)
    changed = Record("a", Group(age), starts)
    after = encoded(changed, unknown_fields(before, record))
    assert msgspec.msgpack.decode(after) == msgspec.msgpack.decode(stored(changed, outside, inside))


def test_a_record_without_unknown_fields_is_encoded_as_ever() -> None:
    record = Record("a", Group(3), {"x": 1})
    assert unknown_fields(msgspec.msgpack.encode(record), record) == {}
    assert encoded(record, {}) == msgspec.msgpack.encode(record)


def test_a_record_of_an_older_version_has_nothing_unknown() -> None:
    old = msgspec.msgpack.encode({"name": "a"})
    assert unknown_fields(old, decode(old)) == {}


def test_a_group_that_is_removed_stays_removed() -> None:
    before = stored(Record("a"), {}, {"new": 1})
    without = Record("a", None)
    assert decode(encoded(without, unknown_fields(before, decode(before)))) == without
