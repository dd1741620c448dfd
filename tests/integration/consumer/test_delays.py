"""Delays end when they are over: a consumer need not ask."""

from __future__ import annotations

import time

import pytest

import quiver


@pytest.mark.parametrize("how", ["published with a delay", "nacked with a delay"])
def test_a_delay_ends_when_it_is_over_and_not_a_second_later(q: quiver.Client, how: str) -> None:
    q.create_queue("jobs")
    with q.consumer("jobs") as messages:
        late = []
        for _ in range(3):
            if how == "published with a delay":
                q.publish("jobs", b"x", delay=0.3)
            else:
                q.publish("jobs", b"x")
                next(messages).nack(delay=0.3)
            began = time.monotonic()
            next(messages).ack()
            late.append(time.monotonic() - began - 0.3)
    assert max(late) < 0.2
