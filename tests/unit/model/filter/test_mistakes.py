"""What is said about a text that is not a filter, and where the caret points."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.errors import InvalidFilter, InvalidRequest, error_classes
from quiver.model.filter import parse_filter
from tests.unit.log.small_logs import effort


def mistake_in(text: str) -> InvalidFilter:
    with pytest.raises(InvalidFilter) as caught:
        parse_filter(text)
    return caught.value


MISTAKES = [
    ("^   ", "the filter is empty"),
    # columns
    ("^kez = 'a'", "no such column; the columns are attempts, dedup_id, "),
    ("^Priority > 3", "no such column"),
    ("^payload = 'a'", "no such column"),
    ("key = 'a' and ^sequence > 1", "no such column"),
    ("key = 'a' and ^and", "expected a column here"),
    ("key = 'a' or^", "expected a column here"),
    ("not^", "expected a column here"),
    ("^= 'a'", "expected a column here"),
    ("(^)", "expected a column here"),
    ("^null is null", "expected a column here"),
    ("^'eu' = headers.region", "a comparison begins with a column"),
    ("^5 < priority", "a comparison begins with a column"),
    # headers
    ("headers ^= 'a'", "say which header"),
    ("headers ^is null", "say which header"),
    ("headers^. = 'a'", "a header's name follows the dot"),
    ("headers^.é = 'a'", "a header's name follows the dot"),
    ("headers[^5] = 'a'", "expected the header's name in single quotes"),
    ("headers['a' ^= 'a'", "expected ] after the header's name"),
    ("headers.a^.b = 'a'", "a header's name with a dot goes in brackets: headers['a.b']"),
    ("headers['a']^['b'] = 'a'", "expected =, !="),
    ("key^.name = 'a'", "expected =, !="),
    # tests
    ("key^", "expected =, !=, <, <=, >, >=, in, like or is null after the column"),
    ("headers.vip ^and key = 'a'", "expected =, !="),
    ("(priority^) > 5", "expected =, !="),
    ("priority ^between 1 and 3", "expected =, !="),
    ("key not ^= 'a'", "expected in or like after the column"),
    ("key is ^'a'", "expected null"),
    ("key is not^", "expected null"),
    ("key in ^'a'", "expected ( after in"),
    ("key in (^)", "expected a value here"),
    ("key in ('a' ^'b')", "expected ) or a comma after the value"),
    ("key in ('a',^", "expected a value here"),
    ("key in ('a'^", "expected ) or a comma after the value"),
    # values
    ("key =^", "expected a value here"),
    ("key = ^eu", "expected a value here"),
    ("key = ^(", "expected a value here"),
    ("key = ^null", "nothing equals null: write is null"),
    ("key in ('a', ^NULL)", "nothing equals null"),
    ("event_time < ^deliver_at", "a column is compared with a value"),
    # types
    ("priority >= ^'high'", "priority is a whole number: write the value without"),
    ("priority >= ^'5'", "priority is a whole number"),
    ("priority > ^4.5", "priority is a whole number"),
    ("offset = ^1e3", "offset is a whole number"),
    ("priority = ^true", "priority is a whole number"),
    ("priority in (1, ^'a')", "priority is a whole number"),
    ("offset > ^9223372036854775808", "the number does not fit 64 bits"),
    ("key = ^5", "key is text: write the value in single quotes"),
    ("headers.n > ^5", "a header is text: write the value in single quotes"),
    ("headers.vip = ^true", "a header is text"),
    ("dedup_id = ^-5", "dedup_id is text"),
    ("event_time > ^5", "event_time is a time: write the value as '2026-01-01T"),
    ("event_time > ^'-1h'", "event_time is a time"),
    ("event_time > ^'2026-13-01'", "event_time is a time"),
    ("event_time > ^'0001-01-01T00:00:00+23:00'", "event_time is a time"),
    ("timestamp in (^'now')", "timestamp is a time"),
    ("priority ^like '5%'", "priority is a whole number: like compares text"),
    ("deliver_at not ^like '2026%'", "deliver_at is a time: like compares"),
    ("key like ^5", "key is text"),
    # patterns
    ("key like ^'a\\'", "the pattern ends in a backslash"),
    ("key like ^'a\\\\\\'", "the pattern ends in a backslash"),
    ("key like ^'%___________'", "a pattern with % may contain _ at most 10 times"),
    # what follows
    ("key = 'a' ^'b'", "expected and, or, or the end of the filter here"),
    ("key = 'a'^) or true", "expected and, or, or the end of the filter here"),
    ("(key = 'a'^", "expected ) to close the parenthesis"),
    ("((key = 'a') or true^", "expected ) to close the parenthesis"),
    # habits from elsewhere
    ("key ^== 'a'", "write = to compare"),
    ("key = 'a' ^&& true", "write and"),
    ("key = 'a' ^|| true", "write or"),
    ("^!true", "write not, or != to compare"),
    ('key = ^"a"', "write text in single quotes"),
    ("key = ^'a", "this text has no closing quote"),
    ("key = ^'it''s", "this text has no closing quote"),
    ("key = 'it's^'", "this text has no closing quote"),
    ("priority > ^+5", "unexpected +"),
    ("key = 'a'^;", "unexpected ;"),
    ("key^\xa0= 'a'", "unexpected character U+00A0"),
    ("key = ^\x00", "unexpected character U+0000"),
]
"""A text with a caret before the place of its mistake, and how the message begins."""


@pytest.mark.parametrize(("marked", "message"), MISTAKES)
def test_a_mistake_is_explained_with_its_line_and_a_caret(marked: str, message: str) -> None:
    position, text = marked.index("^"), marked.replace("^", "")
    error = mistake_in(text)
    said, line, caret = error.message.split("\n")
    assert said.startswith(message)
    assert line.rstrip() == ("  " + text.replace("\u00a0", " ").replace("\x00", "?")).rstrip()
    assert caret == "  " + " " * position + "^"
    assert error.details == {"position": position}


def test_of_several_lines_only_the_one_in_question_is_shown() -> None:
    text = "key = 'a'\r\n\tand priority > 'b'\r\n  and true"
    error = mistake_in(text)
    assert error.message.split("\n")[1:] == ["   and priority > 'b'", "                  ^"]
    assert error.details == {"position": text.index("'b'")}


def test_of_a_long_line_only_the_neighbourhood_is_shown() -> None:
    error = mistake_in("key = 'a' or " * 50 + "kez = 'a'" + " or key = 'a'" * 50)
    assert error.message.split("\n")[1:] == [
        "  … key = 'a' or key = 'a' or key = 'a' or kez = 'a' or key = 'a' or key = 'a' or k…",
        "                                           ^",
    ]


def test_half_a_surrogate_pair_is_shown_as_a_question_mark() -> None:
    error = mistake_in("key = 'ab\ud800'")
    assert error.message == (
        "this is half a character: the text is not valid Unicode\n  key = 'ab?'\n           ^"
    )
    error.message.encode()


def test_a_text_may_have_4096_characters() -> None:
    longest = "key = '" + "x" * 4088 + "'"
    parse_filter(longest)
    error = mistake_in(longest + " ")
    assert error.message.startswith("a filter has at most 4,096 characters, not 4,097")
    assert error.details == {"position": 4096}


def test_a_text_that_is_too_long_once_it_is_spaced_out_is_refused() -> None:
    """The canonical text has to parse again."""
    error = mistake_in("or ".join(["key='a'"] * 400))
    assert "in its normal form the filter has 5,196 characters" in error.message


@pytest.mark.parametrize("opening", ["(", "not ", "not(", "( not "])
def test_nesting_is_bounded(opening: str) -> None:
    step = opening.count("(") + opening.count("not")
    parse_filter(opening * (50 // step) + "true" + ")" * (opening.count("(") * 50 // step))
    error = mistake_in(opening * 100 + "true")
    assert error.message.startswith("the filter is nested more than 50 deep")


def test_nesting_side_by_side_does_not_add_up() -> None:
    parse_filter(" and ".join(["not (not (true))"] * 100))


def test_literals_are_bounded() -> None:
    parse_filter(f"priority in ({', '.join(['1'] * 1000)})")
    text = f"priority in ({','.join(['1'] * 1001)})"
    error = mistake_in(text)
    assert error.message.startswith("the filter has more than 1,000 values")
    assert error.details == {"position": len(text) - 2}


def test_patterns_that_cost_most_have_a_bound() -> None:
    test = "key like '%a%b%'"
    parse_filter(" or ".join([test] * 50 + ["key like '%a%'"] * 50))
    error = mistake_in(" or ".join([test] * 51))
    assert error.message.startswith("the filter has more than 50 patterns")


def test_the_cost_of_a_filter_grows_with_its_tests_and_the_texts() -> None:
    plain, general = parse_filter("key = 'a'"), parse_filter("key like '%a%b%'")
    short, long = (pa.record_batch({"key": [b"a" * size] * 1000}) for size in (1, 10_000))
    assert 0 < plain.seconds(short) < general.seconds(short) < general.seconds(long)
    assert parse_filter("true").seconds(long) == 0


def test_patterns_are_bounded() -> None:
    parse_filter("key like '" + "x" * 256 + "'")
    parse_filter("key like '" + "_" * 256 + "'")
    parse_filter("key like '" + "_" * 10 + "%" * 246 + "'")
    parse_filter(r"key like '%" + r"\_" * 100 + "'")
    error = mistake_in("key like '" + "x" * 257 + "'")
    assert error.message.startswith("a pattern has at most 256 characters")


def test_the_error_is_a_request_that_is_not_valid_and_keeps_its_code() -> None:
    assert error_classes()["invalid_filter"] is InvalidFilter
    assert issubclass(InvalidFilter, InvalidRequest)
    assert not InvalidFilter.retryable


SCRAPS = """
    and or not in like is null true false
    key headers headers.a headers. headers['a'] priority event_time offset
    ( ) [ ] , = != <> < <= > >= . - % + ; ' \\
    'a' '' 5 -5 4.5 1e999 99999999999999999999 '2026-01-01' '9999-12-31T23:59:59-23:59' '%_' '\\' 'é' é
"""
ODDITIES = ["\x00", "\ud800", "\uff4b\uff45\uff59", "\u0663", "\u2028", "\n"]
scraps = st.sampled_from(SCRAPS.split() + ODDITIES)


@settings(max_examples=200 * effort(), deadline=None)
@given(st.text() | st.lists(scraps, max_size=30).map(" ".join))
def test_whatever_the_text_only_invalid_filter_is_raised(text: str) -> None:
    try:
        wanted = parse_filter(text)
    except InvalidFilter as error:
        said, position = error.message, error.details["position"]
    else:
        assert parse_filter(str(wanted)) == wanted
        return
    said.encode()
    assert said.count("\n") == 2
    assert 0 <= position <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1_000_000,
        "not " * 1_000,
        "'" * 4_095,
        "key = '" + "''" * 2_000,
        "-" * 4_096,
        "1" * 4_096,
        "priority = " + "9" * 4_000,
        "key in (" + "'a'," * 1_000,
        "." * 4_096,
        " " * 4_096,
        "\n" * 4_096,
        "headers" * 500,
        "\ud800" * 4_096,
        "\x1b[31m" * 500,
        "a" * 10_000_000,
    ],
)
def test_hostile_texts_are_refused(text: str) -> None:
    assert len(mistake_in(text).message) < 500
