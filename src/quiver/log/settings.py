"""What can be set about one log, with units, defaults and bounds."""

from __future__ import annotations

import msgspec

from quiver.errors import InvalidSetting
from quiver.model.topic import Durability


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    durability: Durability = Durability.FSYNC
    sync_interval_ms: int = 50
    """Durability ``interval``: the longest time that an acknowledged append is not yet synced."""
    segment_bytes: int = 256 << 20
    """A segment that has reached this size is closed and a new one begun."""
    segment_age_s: int = 24 * 3600
    """A segment whose first message is this old is closed and a new one begun."""
    index_interval_bytes: int = 64 << 10
    """Distance in the segment between two entries of its sparse indexes."""
    delivery_index_bytes: int = 16 << 20
    """A segment whose delivery index has reached this size is closed and a new one begun."""
    checkpoint_bytes: int = 64 << 20
    """After this many bytes a checkpoint is written: recovery scans no more than this."""
    rescan_bytes: int = 256 << 10
    """A stop leaves no checkpoint for fewer bytes than this: recovery reads them in a moment."""
    tail_bytes: int = 8 << 20
    """How many of the newest bytes stay in memory for readers at the tail."""
    window_bytes: int = 4 << 20
    """How many bytes one read maps at most, unless a single entry is larger."""
    queued_bytes: int = 64 << 20
    """Appends beyond this many waiting bytes wait for room before they get their offset."""

    def __post_init__(self) -> None:
        if not isinstance(self.durability, Durability):
            known = ", ".join(Durability)
            raise InvalidSetting(
                f"durability must be one of {known}, not {self.durability!r}", setting="durability"
            )
        for name, least, most in (
            ("sync_interval_ms", 1, 60_000),
            ("segment_bytes", 4096, 1 << 40),
            ("segment_age_s", 1, 10 * 365 * 86400),
            ("index_interval_bytes", 512, 1 << 30),
            ("delivery_index_bytes", 1024, 1 << 30),
            ("checkpoint_bytes", 4096, 1 << 40),
            ("rescan_bytes", 0, 1 << 30),
            ("tail_bytes", 0, 1 << 36),
            ("window_bytes", 4096, 1 << 30),
            ("queued_bytes", 1, 1 << 36),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidSetting(
                    f"{name} must be between {least:,} and {most:,}, not {value:,}", setting=name
                )
