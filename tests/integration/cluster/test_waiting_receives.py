"""Receives that wait on several leaders: no message is leased that no program gets."""

from __future__ import annotations

import pytest

from tests.aio import run
from tests.integration.cluster import waiting_consumers
from tests.integration.cluster.nodes import Cluster

MESSAGES = 3000


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
