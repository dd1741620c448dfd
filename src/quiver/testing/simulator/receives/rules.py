"""What should not have happened to messages that consumers receive: more rules for the checker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from quiver.testing.simulator.history import Delivery, History
from quiver.testing.simulator.sessions.rules import leads_of

_LEASE_SECONDS_MAX = 5.0
"""The longest visibility, and the time until others are given what lapsed."""


def lapsed_unseen(history: History) -> Iterator[str]:
    """While nothing fails, no lease ends of a message that no program had.

    A lease that ends counts as an attempt. So a message that is delivered for the second time was
    handed to a program before. A leader that hands over may have leased what it could not send.
    """
    if not history.is_calm:
        return
    seen: dict[tuple[str, str, int], list[Delivery]] = defaultdict(list)
    for delivery in history.deliveries:
        earlier = seen[delivery.queue, delivery.partition, delivery.offset]
        if delivery.attempt - 1 > len(earlier) and not _has_moved(history, delivery):
            yield (
                f"{delivery.consumer} got {delivery.queue}'s {delivery.partition}:{delivery.offset} "
                f"at {delivery.ended:.3f} s for the {delivery.attempt}th time, and programs had it "
                f"{len(earlier)} times before"
            )
        earlier.append(delivery)


def _has_moved(history: History, delivery: Delivery) -> bool:
    """Whether another node began to lead the partition since the lease may have begun."""
    since = delivery.ended - _LEASE_SECONDS_MAX
    return any(since < at for at, _ in leads_of(history, delivery.partition) if at < delivery.ended)


RECEIVE_RULES = (lapsed_unseen,)
