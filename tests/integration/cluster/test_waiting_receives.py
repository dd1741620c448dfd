"""Receives that wait on several leaders: no message is leased that no program gets."""

from __future__ import annotations

import os

import pytest

from tests.aio import run
from tests.integration.cluster import waiting_consumers
from tests.integration.cluster.nodes import Cluster

MESSAGES = 3000
RUNS = int(os.environ.get("WAITING_RUNS", "1"))
"""How often many messages are run through the cluster."""
MANY_MESSAGES = 20_000


@pytest.mark.parametrize("impatient", [False, True])
def test_each_message_is_handed_over_once_and_without_a_lapse(
    three: Cluster, impatient: bool
) -> None:
    name = f"waited-for-{impatient}"
    three.client(0).create_queue(name, partitions=3, visibility="5s")
    account = run(
        waiting_consumers.run(three, name, MESSAGES, impatient=impatient), timeout_seconds=150
    )
    assert account.unlike(MESSAGES) is None
    info = three.client(1).describe_subscription(name)
    assert (info.ready, info.leased, info.unseen) == (0, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize("number", range(RUNS))
def test_twenty_thousand_messages_are_handed_over_exactly_once(three: Cluster, number: int) -> None:
    name = f"many-{number}"
    three.client(0).create_queue(name, partitions=3, visibility="10s")
    work = waiting_consumers.run(
        three, name, MANY_MESSAGES, burst=100, messages_max=20, seed=number
    )
    account = run(work, timeout_seconds=200)
    print(f"run {number}: the slowest after {account.slowest_s:.3f} s")
    assert account.unlike(MANY_MESSAGES) is None
    three.client(0).delete_subscription(name)
