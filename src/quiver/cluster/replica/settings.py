"""What can be set about replication."""

from __future__ import annotations

import msgspec

from quiver.cluster.replica.leader import LeaderSettings


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    leader: LeaderSettings = LeaderSettings()
    fetch_bytes: int = 1 << 20
    """About how much one fetch brings at most."""
    fetch_wait_s: float = 0.5
    """How long a leader keeps a fetch waiting for something new."""
    fetch_timeout_s: float = 2.0
    """After how long without an answer a follower asks again."""
    pause_s: float = 0.05
    """How long a follower waits before it asks a leader again that did not lead."""
    tick_s: float = 0.25
    """How often a leader looks who is out of sync."""
