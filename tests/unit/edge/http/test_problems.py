"""How errors are told over HTTP."""

from __future__ import annotations

import msgspec
import pytest

from quiver.edge.http.problems import STATUSES, invalid, problem_of, status_of
from quiver.edge.http.schemas.messages import NewMessage
from quiver.edge.http.schemas.subscriptions import SubscriptionFields
from quiver.edge.http.schemas.topics import TopicFields
from quiver.errors import (
    DiskFull,
    QuiverError,
    StaleReceipt,
    TopicNotFound,
    Unavailable,
    error_classes,
)


@pytest.mark.parametrize("kind", error_classes().values(), ids=lambda kind: kind.code)
def test_every_error_has_a_status_and_a_document(kind: type[QuiverError]) -> None:
    problem = problem_of(kind("why"))
    assert 400 <= problem.status < 600
    assert (problem.code, problem.detail) == (kind.code, "why")
    assert problem.title
    assert problem.type == f"urn:quiver:error:{kind.code}"


@pytest.mark.parametrize("kind", error_classes().values(), ids=lambda kind: kind.code)
def test_what_may_be_tried_again_is_no_client_error_but_one_that_says_when(
    kind: type[QuiverError],
) -> None:
    status = status_of(kind)
    if kind.retryable:
        assert status in (409, 429, 503, 504)
    if status in (429, 503, 504):
        assert problem_of(kind()).retry_after


@pytest.mark.parametrize("kind", error_classes().values(), ids=lambda kind: kind.code)
def test_a_title_is_one_sentence(kind: type[QuiverError]) -> None:
    title = problem_of(kind()).title
    assert title
    assert ". " not in title
    assert (kind.__doc__ or "").startswith(title)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("delay", "soon", "not a duration: write seconds, or text such as '30s', '1h30m'"),
        ("dead_letter", "a b", "not a name: use 1 to 200 letters"),
        ("topics", ["a b"], "not a topic or pattern: use 1 to 200 letters"),
        ("retention", {"bytes": "much"}, "not a size: write bytes, or text such as '10MB'"),
        ("push", {"url": "ftp://a"}, "not a URL: it begins with http:// or https://"),
    ],
)
def test_text_of_another_form_is_told_in_words(field: str, value: object, words: str) -> None:
    kinds = {"delay": NewMessage, "retention": TopicFields}
    given = {field: value} | ({"message": 1} if field == "delay" else {})
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(msgspec.json.encode(given), type=kinds.get(field, SubscriptionFields))
    detail = problem_of(invalid(caught.value)).detail
    assert words in detail
    assert "regex" not in detail


def test_an_error_that_is_not_in_the_table_is_told_as_its_parent() -> None:
    assert DiskFull.code not in STATUSES
    assert status_of(DiskFull) == STATUSES[Unavailable.code] == 503


def test_the_statuses_that_users_expect() -> None:
    assert status_of(TopicNotFound) == 404
    assert status_of(StaleReceipt) == 409


class _Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class _Outer(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[_Inner]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b'{"parts": [{"size": 1}, {"size": "x"}]}', "parts[1].size"),
        (b'{"parts": [{"size": 1, "colour": 2}]}', "parts[0].colour"),
        (b'{"parts": [{}]}', "parts[0].size"),
        (b"{}", "parts"),
        (b"3", None),
    ],
)
def test_the_field_at_fault_is_named(text: bytes, field: str | None) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=_Outer)
    assert problem_of(invalid(caught.value)).field == field
