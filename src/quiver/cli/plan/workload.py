"""The workload to plan for: rate, size, retention, replicas and consumers."""

from __future__ import annotations

import re

import msgspec

from quiver.errors import InvalidSetting
from quiver.model.setting import setting_of, within
from quiver.model.topic import PARTITIONS_MAX, TopicSettings

_RATE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)(?:/([smhd]))?", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TOPIC = TopicSettings()
_MESSAGE_BYTES_MAX = setting_of(TopicSettings, "message_bytes_max").most or 0


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    rate_per_s: float
    """Messages per second on average; disks are for this."""
    peak: float = 1.0
    """The busiest moment over the average; nodes and networks are for that."""
    size_bytes: float
    retention_s: float
    replicas: int = 3
    subscriptions: int = 1
    """How often each message is delivered."""
    consumers: int = 1
    """Members of the largest consumer group: each needs a partition."""
    packed: float | None = None
    """Stored bytes for a byte of payload, measured on a sample; ``None`` is uncompressed."""
    utilisation_max: float = 0.6
    """How busy a node may be at the peak: what is left is for a lost neighbour and for bursts."""
    node_disk_bytes: int | None = None
    node_network_bytes_per_s: float = 1.25e9
    round_trip_ms: float = 0.5
    segment_bytes: int = _TOPIC.segment_bytes
    segment_age_s: int = _TOPIC.segment_age_s

    def __post_init__(self) -> None:
        within("--rate", self.rate_per_s, 0.001, 1e9)
        within("--peak", self.peak, 1, 1000)
        within("--size", self.size_bytes, 1, _MESSAGE_BYTES_MAX)
        setting_of(TopicSettings, "retention.age").checked(self.retention_s, "--retention")
        setting_of(TopicSettings, "replicas").checked(self.replicas, "--replicas")
        within("--subscriptions", self.subscriptions, 0, 10_000)
        within("--consumers", self.consumers, 1, PARTITIONS_MAX)
        within("--utilisation", self.utilisation_max, 0.05, 0.95)
        within("--node-disk", self.node_disk_bytes, 10_000_000_000, 1 << 60)
        within("--node-network", self.node_network_bytes_per_s, 1_000_000, 1e12)
        within("--round-trip", self.round_trip_ms, 0, 10_000)

    @property
    def peak_per_s(self) -> float:
        return self.rate_per_s * self.peak


def rate_per_s(text: str) -> float:
    """``100000``, ``5000/s`` or ``1e9/d`` as messages per second."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(f"{text[:80]!r} is not a rate; write it as 100000, 5000/s or 1e9/d")
    return float(match[1]) / _SECONDS[(match[2] or "s").lower()]
