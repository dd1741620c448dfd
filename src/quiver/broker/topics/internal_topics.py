"""Topics of the broker itself. Their names begin with ``__``, which no user's name can.

They are made when they are first needed. Users read them and subscribe to them, and change nothing.
"""

from __future__ import annotations

from quiver.model.topic import Retention, TopicSettings

ALERTS = "__alerts"
SETTINGS = {ALERTS: TopicSettings(retention=Retention(age="30d", bytes=64 << 20))}
