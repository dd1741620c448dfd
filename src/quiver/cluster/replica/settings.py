"""What can be set about replication."""

from __future__ import annotations

import msgspec

from quiver.cluster.replica.leader import LeaderSettings


class ReplicaSettings(msgspec.Struct, frozen=True, kw_only=True):
    leader: LeaderSettings = LeaderSettings()
    fetch_bytes: int = 1 << 20
    """About how much one fetch brings at most."""
    fetch_wait_s: float = 0.5
    """How long a leader keeps a fetch waiting for something new, while there often is."""
    idle_wait_s: float = 60.0
    """How long at most: each fetch that brings nothing lets the next wait twice as long."""
    watermark_delay_s: float = 0.01
    """How long a watermark that moved waits for entries to ride on. Sent alone it costs an answer and
    a fetch of each follower. Those who read from followers look every 50 ms, so they hardly notice."""
    fetch_timeout_s: float = 2.0
    """After how long without an answer, beyond what it may wait, a follower asks again."""
    pause_s: float = 0.05
    """How long a follower waits before it asks a leader again that did not lead or not answer."""
    pause_s_max: float = 0.5
    """How long at most: each such answer makes the pause twice as long."""
    tick_s: float = 0.25
    """How often a leader looks who is out of sync, while time alone can tell."""
