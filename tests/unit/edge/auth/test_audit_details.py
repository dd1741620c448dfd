"""What an audit line says of an act: what was granted, altered or redriven, and never a secret."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quiver import protocol
from quiver.edge.auth.audit_details import TEXT_MAX, details_of
from quiver.edge.calls.table import CALLS
from quiver.model.subscription import Push, SubscriptionSettings
from quiver.model.topic import TopicSettings

AUDITED = [request for request, row in CALLS.items() if row.is_audited]


@pytest.mark.parametrize(
    ("request_", "reply", "details"),
    [
        (
            protocol.CreateToken(name="shop", grants=["publish:orders"], expires_s=60.0),
            protocol.TokenCreated(
                info=protocol.TokenInfo(id="ab12", name="shop", grants=[], created_us=0),
                token="qv_ab12_secret",
            ),
            {"grants": ["publish:orders"], "expires_s": 60.0, "token_id": "ab12"},
        ),
        (
            protocol.AlterSubscription(name="job", changes={"dead_letter": "mine"}),
            None,
            {"changes": {"dead_letter": "mine"}},
        ),
        (
            protocol.AlterTopic(name="job", changes={"retention": {"age": 60}}),
            None,
            {"changes": {"retention": {"age": 60}}},
        ),
        (
            protocol.Redrive(subscription="job", to="mine", filter="key = 'a'"),
            protocol.Redriven(count=2, by_topic={"mine": 2}),
            {"to": "mine", "filter": "key = 'a'", "count": 2, "by_topic": {"mine": 2}},
        ),
        (
            protocol.Redrive(subscription="job"),
            protocol.Redriven(count=1, by_topic={"orders": 1}),
            {"count": 1, "by_topic": {"orders": 1}},
        ),
        (protocol.Purge(subscription="job"), protocol.Counted(count=3), {"count": 3}),
        (protocol.Seek(subscription="job", at="latest"), None, {"at": "latest"}),
        (protocol.DeleteTopic(name="job"), None, {}),
        (
            protocol.MovePartition(topic="job", partition=1, nodes=["a", "b"]),
            None,
            {"partition": 1, "nodes": ["a", "b"]},
        ),
        (
            protocol.CreateTopic(name="job", settings=TopicSettings(partitions=3)),
            None,
            {"settings": {"partitions": 3}},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_line_says_what_was_changed(
    request_: protocol.AnyRequest, reply: protocol.AnyReply | None, details: dict[str, Any]
) -> None:
    assert details_of(request_, reply) == details


def test_a_line_names_the_host_of_an_endpoint_and_not_what_may_be_secret_in_its_url() -> None:
    push = Push(url="https://hooks.example.com:8443/T0/secret?key=secret", secret="signing")
    settings = SubscriptionSettings(topics=["job"], push=push)
    made = protocol.CreateSubscription(name="job", settings=settings)
    altered = protocol.AlterSubscription(name="job", changes={"push": {"url": push.url}})
    for request in (made, altered):
        text = str(details_of(request, None))
        assert "https://hooks.example.com:8443" in text
        assert "T0" not in text
        assert "key=" not in text


def test_details_are_bounded() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"x": deep}
    wide = {f"key{number}": "v" * 1000 for number in range(100_000)}
    for changes in (deep, wide, {"topics": ["t" * 300] * 100_000}):
        request = protocol.AlterSubscription(name="job", changes=changes)
        assert len(msgspec.json.encode(details_of(request, None))) < 2 * TEXT_MAX


@pytest.mark.parametrize("request_", AUDITED, ids=lambda request: request.__name__)
def test_every_field_of_an_audited_request_is_in_its_line(
    request_: type[protocol.Request],
) -> None:
    """The name of what it is about is ``resource``; a field with another value than usual is said."""
    fields = [one.name for one in msgspec.structs.fields(request_) if one.name != "id"]
    given = {name: f"value of {name}" for name in fields}
    made = request_(**given)
    said = details_of(made, None)  # type: ignore[arg-type]
    resources = ("name", "topic", "subscription", "token_id", "node")
    resource = next((one for one in resources if one in fields), None)
    assert set(said) == set(fields) - {resource}
