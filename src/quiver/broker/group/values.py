"""The values of a consumer group: members, partitions, grants, and changes of them.

A grant is identified by its partition and its epoch, and no two grants share both. So a late or
repeated message about one grant is never taken for another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, NewType

import msgspec

from quiver.model.ids import Microseconds
from quiver.model.setting import setting_of, within
from quiver.model.subscription import SubscriptionSettings

MemberId = NewType("MemberId", str)
"""Names one run of one consumer: a process that starts again takes a new one."""
GrantEpoch = NewType("GrantEpoch", int)
"""Grows with each grant of a partition; what comes under an older one is fenced off."""

Interests = frozenset[str] | None
"""The topics a member reads; ``None``: all that the subscription has."""


class PartitionKey(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Owner(NamedTuple):
    member: MemberId
    epoch: GrantEpoch


Assignments = Mapping[PartitionKey, GrantEpoch]
NOTHING: Assignments = MappingProxyType({})


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    session_timeout_us: int = 10_000_000
    """A member that is silent for this long is taken for dead."""
    rebalance_timeout_us: int = 30_000_000
    """A member that was asked for a partition and keeps it for this long loses it."""

    def __post_init__(self) -> None:
        setting_of(SubscriptionSettings, "session_timeout").checked(
            self.session_timeout_us / 1_000_000
        )
        within("rebalance_timeout_us", self.rebalance_timeout_us, 1_000_000, 3_600_000_000)


class View(msgspec.Struct, frozen=True):
    """All that a member owns. What it held and does not find here, it has lost."""

    partitions: dict[PartitionKey, GrantEpoch]
    """To be read."""
    give_up: dict[PartitionKey, GrantEpoch]
    """Asked for: nothing new is delivered; finish or release what is in hand, then say so."""


class Reason(StrEnum):
    """Why a member owns a partition no more."""

    GAVE_UP = "given up"
    TOO_LATE = "not given up in time"
    LEFT = "left"
    EXPIRED = "fell silent"
    REMOVED = "no longer read"


class MemberJoined(msgspec.Struct, frozen=True):
    member: MemberId


class MemberLeft(msgspec.Struct, frozen=True):
    member: MemberId
    reason: Reason


class Granted(msgspec.Struct, frozen=True):
    """The member owns the partition from now on, under this epoch."""

    partition: PartitionKey
    member: MemberId
    epoch: GrantEpoch


class Asked(msgspec.Struct, frozen=True):
    """The member shall give the partition up by the deadline; until it does, the grant is good."""

    partition: PartitionKey
    member: MemberId
    epoch: GrantEpoch
    deadline: Microseconds


class Spared(msgspec.Struct, frozen=True):
    """The member was asked for the partition, and may go on reading it after all."""

    partition: PartitionKey
    member: MemberId
    epoch: GrantEpoch


class Revoked(msgspec.Struct, frozen=True):
    """The grant is over: what was delivered under it goes back."""

    partition: PartitionKey
    member: MemberId
    epoch: GrantEpoch
    reason: Reason


Change = MemberJoined | MemberLeft | Granted | Asked | Spared | Revoked
