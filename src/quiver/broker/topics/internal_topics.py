"""Topics of the broker itself. Their names begin with ``__``, which no user's name can.

They are made when they are first needed. Users read them and subscribe to them, and change nothing.
"""

from __future__ import annotations

from quiver.errors import InvalidRequest
from quiver.model.topic import Retention, TopicSettings, is_internal

ALERTS = "__alerts"
SETTINGS = {ALERTS: TopicSettings(retention=Retention(age="30d", bytes=64 << 20))}


def require_users_own(topic: str) -> None:
    """``InvalidRequest`` if the topic is one of the broker's own, which users only read."""
    if is_internal(topic):
        raise InvalidRequest(
            f"{topic!r} is an internal topic of Quiver: it can be read but not written"
        )
