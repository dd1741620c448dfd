"""The audit log: a line for each act and each refusal, and no flood of the same one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from quiver import protocol
from quiver.edge.auth import audit as audit_module
from quiver.edge.auth.audit import Audit
from quiver.edge.auth.audit_details import resource_of
from quiver.errors import PermissionDenied, TopicExists
from quiver.model.topic import TopicSettings

REQUEST = protocol.CreateTopic(name="orders", settings=TopicSettings(partitions=3))


@pytest.fixture(autouse=True)
def every_line(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever another test of this process has asked of logging, or fixed for this module."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    monkeypatch.setattr(audit_module, "logger", structlog.get_logger())
    yield
    structlog.configure(**before)


def refused(audit: Audit, now: float, principal: str = "shop") -> list[Any]:
    with capture_logs() as lines:
        audit.refusal(principal, "publish", "orders", "192.0.2.1", PermissionDenied(), now)
    return lines


def test_an_act_says_who_did_what_from_where_and_how_it_ended() -> None:
    with capture_logs() as lines:
        Audit().act("ops", REQUEST, "192.0.2.1", protocol.Done())
        Audit().act("ops", REQUEST, "192.0.2.1", TopicExists())
    done, failed = lines
    assert done == {
        "event": "audit",
        "log_level": "info",
        "act": "create_topic",
        "resource": "orders",
        "details": {"settings": {"partitions": 3}},
        "principal": "ops",
        "address": "192.0.2.1",
        "outcome": "done",
    }
    assert (failed["outcome"], failed["code"]) == ("failed", "topic_exists")


def test_a_refusal_that_repeats_is_counted() -> None:
    audit = Audit()
    (first,) = refused(audit, 0.0)
    assert first["outcome"] == "refused"
    assert "repeated" not in first
    assert [refused(audit, 0.5) for _ in range(1000)] == [[]] * 1000
    assert len(refused(audit, 0.5, "another")) == 1
    (again,) = refused(audit, 1.0)
    assert again["repeated"] == 1000


def test_what_was_counted_is_told_in_the_end() -> None:
    audit = Audit()
    refused(audit, 0.0)
    refused(audit, 0.1)
    with capture_logs() as lines:
        audit.flush(0.9)
        assert lines == []
        audit.flush(1.0)
        audit.flush(5.0)
    assert [line["repeated"] for line in lines] == [1]


def test_how_much_is_remembered_is_bounded_and_nothing_is_lost() -> None:
    audit = Audit()
    for number in range(3000):
        refused(audit, 0.0, f"p{number}")
    assert len(audit._refused) <= 1000


def test_a_long_name_does_not_make_a_long_line() -> None:
    assert len(resource_of(protocol.DeleteTopic(name="x" * 100_000))) == 200
