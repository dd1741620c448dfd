"""Mirrors over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from quiver.edge.http.schemas.settings import partial_of
from quiver.edge.http.schemas.values import DurationText
from quiver.model.mirror.origin import Origin
from quiver.model.mirror.settings import PATTERNS_MAX, MirrorSettings
from quiver.model.subscription import TOPIC_PATTERN

Token = Annotated[
    str,
    Meta(
        max_length=1000,
        description="Token for the source. It is not shown again.",
        extra_json_schema={"format": "password"},
    ),
]
_TOKEN = (("token", Token | UnsetType, UNSET),)
MirrorFields = partial_of(
    "MirrorFields",
    MirrorSettings,
    doc="Settings of a new mirror. It needs `source` and `topics`; any other setting that is left out "
    "has its default.",
    extra=_TOKEN,
)
MirrorChanges = partial_of(
    "MirrorChanges",
    MirrorSettings,
    doc="Changes to the settings of a mirror. A setting that is left out stays as it is, and so does the "
    "token.",
    is_new=False,
    extra=_TOKEN,
)


class Gap(Struct, kw_only=True):
    """Offsets that retention at the source removed before they were copied."""

    start_offset: int
    next_offset: int
    """The first offset behind the gap."""


class CopiedPartitionView(Struct, kw_only=True):
    """How far the copy of one partition has come."""

    index: int
    next_offset: int
    """Where the copy ends."""
    source_offset: int | None
    """Where the source ended when it last answered."""
    lag_messages: int | None
    lag_bytes: int | None
    lag_s: float | None
    """For how long the copy has not had everything that the source had."""
    state_lag_s: float | None
    """How old the delivery state of its subscriptions is; null if it is not copied, or not yet."""
    gaps: list[Gap]
    error: str
    """Why nothing is copied now."""
    is_broken: bool
    """Whether that does not pass by itself."""


class CopiedTopicView(Struct, kw_only=True):
    name: str
    source: str
    """Its name at the source."""
    error: str
    """Why it is not copied: its name is taken, or it would travel in a circle."""
    diverged_to: str
    """After a failback: the topic that has the messages that the source never got."""
    partitions: list[CopiedPartitionView]


class MirrorView(Struct, kw_only=True):
    name: str
    created: datetime
    settings: MirrorSettings
    has_token: bool
    cluster: str
    """The id of the source; empty until it has answered."""
    state: str
    """`connecting`, `copying`, `paused`, or `broken` if something does not pass by itself."""
    error: str
    """Why the source cannot be reached now."""
    lag_messages: int | None
    """Messages that the source has and the copies do not; null while it is not known."""
    lag_bytes: int | None
    lag_s: float | None
    """The longest time for which a partition has not had everything."""
    copied_bytes: int
    """Bytes of entries that were copied since the nodes started."""
    fetched_bytes: int
    """Bytes that came over the network for that."""
    topics: list[CopiedTopicView]


class MirrorList(Struct, kw_only=True):
    mirrors: list[MirrorView]


class Promotion(Struct, kw_only=True, forbid_unknown_fields=True):
    """Copies to promote."""

    topics: Annotated[
        list[Annotated[str, Meta(pattern=TOPIC_PATTERN, examples=["orders.*"])]],
        Meta(min_length=1, max_length=PATTERNS_MAX, description="Names of copies, or patterns."),
    ]
    fence: Annotated[
        bool,
        Meta(description="Stop the source first, and wait for what it still has. Default: true."),
    ] = True
    timeout: Annotated[
        Annotated[float, Meta(ge=0, le=600)] | DurationText,
        Meta(description="Longest time to wait for the source of each topic. Default: 10 s."),
    ] = 10


class PromotedView(Struct, kw_only=True):
    name: str
    source: Origin
    fenced: bool
    """Whether the source takes no more publishes."""
    complete: bool
    """Whether the copy had everything that the source had when it was stopped."""
    error: str
    """Why it is not fenced or not complete."""


class PromotedList(Struct, kw_only=True):
    topics: list[PromotedView]
