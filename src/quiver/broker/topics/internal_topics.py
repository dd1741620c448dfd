"""Internal topics of the broker. Their names begin with ``__``, which no user's name can.

They are created when first needed. Users can read them and subscribe to them, but not change them.
"""

from __future__ import annotations

from quiver.errors import InvalidRequest
from quiver.model.topic import Retention, TopicSettings, is_internal

ALERTS = "__alerts"
TRANSACTIONS = "__transactions"
SETTINGS = {
    ALERTS: TopicSettings(retention=Retention(age="30d", bytes=64 << 20)),
    # Its coordinators drop what is before their checkpoints, and nobody else drops anything.
    TRANSACTIONS: TopicSettings(
        retention=Retention(age=None), segment_bytes=16 << 20, dedup_window=0
    ),
}


def require_users_own(topic: str) -> None:
    """``InvalidRequest`` if the topic is one of the broker's own, which users only read."""
    if is_internal(topic):
        raise InvalidRequest(
            f"{topic!r} is an internal topic of Quiver: it can be read but not written"
        )
