"""Random filters on random messages, against a reference that goes message by message in plain Python.

A generated filter is its text together with a function that says what it is of one message: true,
false, or ``None`` for unknown. The function is put together while the text is, so it shares nothing
with the parser or with Arrow.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.model.filter import parse_filter
from quiver.model.schema import COLUMNS, TIMESTAMP
from tests.unit.log.small_logs import effort
from tests.unit.model.filter.test_like import like_truth, patterns, quoted, small_texts

Message = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXTRAS = {
    "offset": pa.int64(),
    "partition": pa.int32(),
    "timestamp": TIMESTAMP,
    "attempts": pa.int64(),
}
STORED = {field.name: field.type for field in COLUMNS if field.name not in ("payload", "sequence")}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Generated(NamedTuple):
    """A filter's text, and what it is of a message."""

    text: str
    truth: Callable[[Message], bool | None]


class Operand(NamedTuple):
    """A column's text, its value in a message, and literals with the values they stand for."""

    text: str
    value: Callable[[Message], Any]
    literals: st.SearchStrategy[tuple[str, Any]]
    is_text: bool = False


keys = st.binary(max_size=3) | small_texts.map(str.encode)
header_names = st.sampled_from(["a", "x-y_Z", "and", "a b", "it's", "", "é", "[%"])
numbers = st.integers(-2, 12) | st.integers(-(1 << 63), (1 << 63) - 1)
times = st.integers(-3, 3) | st.integers(-62135596800_000_000, 253402300799_999_999)
TYPES = STORED | EXTRAS
VALUES = {
    pa.binary(): keys,
    pa.string(): small_texts,
    pa.int8(): st.integers(0, 9),
    pa.int32(): st.integers(0, 9),
    pa.int64(): numbers,
    TIMESTAMP: times,
    TYPES["headers"]: st.lists(st.tuples(header_names, st.none() | small_texts), max_size=3),
}
messages = st.fixed_dictionaries({}, optional={name: VALUES[kind] for name, kind in TYPES.items()})


def time_text(time_us: int, hours: int) -> str:
    """The moment in ISO 8601, in one time zone or another."""
    moment = EPOCH + timedelta(microseconds=time_us)
    if hours and 2 <= moment.year <= 9998:
        moment += timedelta(hours=hours)
        return quoted(f"{moment.replace(tzinfo=None).isoformat()}{hours:+03d}:00")
    return quoted(moment.replace(tzinfo=None).isoformat() + ("Z" if hours == 0 else ""))


def header_value(name: str) -> Callable[[Message], str | None]:
    def value(message: Message) -> str | None:
        return next((value for key, value in message.get("headers", ()) if key == name), None)

    return value


@st.composite
def operands(draw: st.DrawFn) -> Operand:
    name = draw(st.sampled_from([*TYPES]))
    texts = small_texts.map(lambda text: (quoted(text), text))
    if name == "headers":
        header = draw(header_names)
        is_plain = header in ("a", "x-y_Z", "and") and draw(st.booleans())
        column = f"headers.{header}" if is_plain else f"headers[{quoted(header)}]"
        return Operand(column, header_value(header), texts, True)
    default = 4 if name == "priority" else None
    literals: st.SearchStrategy[tuple[str, Any]] = numbers.map(lambda number: (str(number), number))
    if TYPES[name] == pa.string():
        literals = texts
    elif TYPES[name] == pa.binary():
        literals = small_texts.map(lambda text: (quoted(text), text.encode()))
    elif TYPES[name] == TIMESTAMP:
        zoned = st.tuples(times, st.sampled_from([0, 0, 5, -3]))
        literals = zoned.map(lambda pair: (time_text(*pair), pair[0]))
    is_text = TYPES[name] in (pa.string(), pa.binary())
    return Operand(name, lambda message: message.get(name, default), literals, is_text)


@st.composite
def column_tests(draw: st.DrawFn) -> Generated:
    """One test of one column."""
    column, value, literals, is_text = draw(operands())
    opposite = draw(st.booleans())

    def unless_null(test: Callable[[Any], bool]) -> Callable[[Message], bool | None]:
        return lambda message: None if value(message) is None else test(value(message))

    match draw(st.sampled_from(["compare", "in", "null", "like" if is_text else "compare"])):
        case "compare":
            symbol = draw(st.sampled_from(list(COMPARISONS)))
            text, literal = draw(literals)
            space = draw(st.sampled_from(["", " ", "\n"]))
            truth = unless_null(lambda value: COMPARISONS[symbol](value, literal))
            return Generated(f"{column}{space}{symbol}{space}{text}", truth)
        case "in":
            listed = draw(st.lists(literals, min_size=1, max_size=4))
            members = [literal for _, literal in listed]
            text = (
                f"{column} {'not ' if opposite else ''}IN({','.join(text for text, _ in listed)})"
            )
            return Generated(text, unless_null(lambda value: (value in members) != opposite))
        case "like":
            pattern = draw(patterns)
            text = f"{column} {'NOT ' if opposite else ''}like {quoted(pattern)}"
            return Generated(
                text, unless_null(lambda value: like_truth(value, pattern) != opposite)
            )
        case _:
            text = f"{column} is {'not ' if opposite else ''}NULL"
            return Generated(text, lambda message: (value(message) is None) != opposite)


def both(left: Generated, right: Generated) -> Generated:
    def truth(message: Message) -> bool | None:
        found = left.truth(message), right.truth(message)
        return False if False in found else None if None in found else True

    return Generated(f"({left.text}) AND ({right.text})", truth)


def either(left: Generated, right: Generated) -> Generated:
    def truth(message: Message) -> bool | None:
        found = left.truth(message), right.truth(message)
        return True if True in found else None if None in found else False

    return Generated(f"({left.text}) Or ({right.text})", truth)


def opposite_of(inner: Generated) -> Generated:
    def truth(message: Message) -> bool | None:
        found = inner.truth(message)
        return None if found is None else not found

    return Generated(f"not ({inner.text})", truth)


constants = st.booleans().map(lambda truth: Generated(str(truth), lambda message: truth))
filters = st.recursive(
    column_tests() | column_tests() | column_tests() | constants,
    lambda parts: st.one_of(
        st.builds(both, parts, parts),
        st.builds(either, parts, parts),
        st.builds(opposite_of, parts),
    ),
    max_leaves=6,
)


def column_of(name: str, kind: pa.DataType, rows: list[Message]) -> pa.Array | None:
    values = [message.get(name) for message in rows]
    return None if all(value is None for value in values) else pa.array(values, kind)


def arrow_of(rows: list[Message]) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
    """A batch without the columns that have no value in it, and the extra columns that have one."""
    stored = {name: column_of(name, kind, rows) for name, kind in STORED.items()}
    extras = {name: column_of(name, kind, rows) for name, kind in EXTRAS.items()}
    batch = pa.RecordBatch.from_pydict(
        {"payload": pa.array([b""] * len(rows), pa.binary())}
        | {name: array for name, array in stored.items() if array is not None}
    )
    return batch, {name: array for name, array in extras.items() if array is not None}


@settings(max_examples=100 * effort(), deadline=None)
@given(filters, st.lists(messages, min_size=1, max_size=8), st.integers(0, 2))
def test_a_filter_matches_what_the_reference_says(
    wanted: Generated, rows: list[Message], start: int
) -> None:
    batch, extra = arrow_of(rows)
    mask = parse_filter(wanted.text).mask(
        batch.slice(start), {name: array.slice(start) for name, array in extra.items()}
    )
    assert mask.tolist() == [wanted.truth(message) is True for message in rows[start:]]


@settings(max_examples=100 * effort(), deadline=None)
@given(filters, st.lists(messages, min_size=1, max_size=4))
def test_the_canonical_text_says_the_same_and_is_its_own_canonical_text(
    wanted: Generated, rows: list[Message]
) -> None:
    parsed = parse_filter(wanted.text)
    again = parse_filter(str(parsed))
    assert again == parsed
    assert str(again) == str(parsed)
    assert (again.columns, again.extras) == (parsed.columns, parsed.extras)
    batch, extra = arrow_of(rows)
    assert again.mask(batch, extra).tolist() == parsed.mask(batch, extra).tolist()
