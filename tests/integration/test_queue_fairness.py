"""Fairness: a tenant's flood does not delay the others on a shared queue."""

from __future__ import annotations

from pathlib import Path

import pytest

import quiver
from quiver.errors import InvalidSetting


def flood(q: quiver.Client, tenant: str, count: int) -> None:
    for number in range(count):
        q.publish("jobs", f"{tenant}{number}", headers={"tenant": tenant})


def take(q: quiver.Client, count: int) -> list[str]:
    messages = q.receive("jobs", count)
    q.ack("jobs", messages)
    return [message.payload.decode() for message in messages]


def test_a_flood_does_not_delay_others(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", fairness="headers.tenant")
    flood(q, "a", 50)
    flood(q, "b", 2)
    flood(q, "c", 1)
    assert sorted(take(q, 6)) == ["a0", "a1", "a2", "b0", "b1", "c0"]
    assert take(q, 2) == ["a3", "a4"]


def test_turns_go_round_from_receive_to_receive(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", fairness="headers.tenant")
    for tenant in "abc":
        flood(q, tenant, 3)
    taken = [take(q, 1)[0] for _ in range(9)]
    assert [sorted(taken[at : at + 3]) for at in (0, 3, 6)] == [
        [f"{tenant}{number}" for tenant in "abc"] for number in range(3)
    ]


def test_messages_without_a_tenant_are_one_tenant(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", fairness="headers.tenant")
    for number in range(5):
        q.publish("jobs", f"-{number}")
    flood(q, "a", 1)
    assert sorted(take(q, 2)) == ["-0", "a0"]


def test_a_key_can_be_the_tenant_and_priorities_still_count(quiver_broker: quiver.Client) -> None:
    q = quiver_broker
    q.create_queue("jobs", fairness="key", ageing=0)
    for number in range(4):
        q.publish("jobs", f"a{number}", key="a")
    q.publish("jobs", "b0", key="b", priority=1)
    q.publish("jobs", "c0", key="c", priority=9)
    assert take(q, 1) == ["c0"]
    assert take(q, 4) == ["a0", "a1", "a2", "a3"]
    assert take(q, 1) == ["b0"]


def test_retries_and_restarts_keep_the_tenant(tmp_path: Path) -> None:
    with quiver.open(tmp_path) as q:
        q.create_queue("jobs", fairness="headers.tenant")
        flood(q, "a", 10)
        flood(q, "b", 3)
        for message in q.receive("jobs", 4):
            message.nack(delay=0)
    with quiver.open(tmp_path) as q:
        assert sorted(take(q, 6)) == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize("wrong", ["tenant", "headers.", "headers.a b", "payload", ""])
def test_a_fairness_key_that_is_none_is_refused(quiver_broker: quiver.Client, wrong: str) -> None:
    with pytest.raises(InvalidSetting, match="fairness must be 'key' or 'headers"):
        quiver_broker.create_queue("jobs", fairness=wrong)


def test_fairness_does_not_go_with_order(quiver_broker: quiver.Client) -> None:
    with pytest.raises(InvalidSetting, match="choose one of them"):
        quiver_broker.create_queue("jobs", fairness="key", ordering="key")
