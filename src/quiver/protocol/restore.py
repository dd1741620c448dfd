"""Restoring a backup: topics with their messages, subscriptions with their state, and tokens.

All of these calls are for administrators of the cluster. They store only in topics that were created by
``restore_topic`` and are not finished. Each can be repeated.
"""

from __future__ import annotations

import msgspec

from quiver.protocol.access import TokenInfo
from quiver.protocol.base import Reply, Request
from quiver.protocol.subscriptions import SubscriptionInfo
from quiver.protocol.topics import TopicInfo


class RestoreTopic(Request, tag="restore_topic"):
    """Create a topic as a backup has it: its number, its partitions, and where each begins."""

    name: str
    info: TopicInfo
    backup: str
    """What is restored. Only the same text continues a topic that is being restored."""


class RestoreEntries(Request, tag="restore_entries"):
    """Store entries at their own offsets and times. The body is whole entries, perhaps none."""

    topic: str
    partition: int


class EntriesRestored(Reply, tag="entries_restored"):
    next_offset: int
    """The offset that the next entry must have."""


class RestoreSubscription(Request, tag="restore_subscription"):
    """Create a subscription as a backup has it. It has nothing to deliver before its state is there."""

    name: str
    info: SubscriptionInfo


class RestoreState(Request, tag="restore_state"):
    """Where the messages of one partition stand with a subscription. The body is the bitmaps."""

    subscription: str
    topic: str
    partition: int
    next_offset: int
    """What is from here on has not been delivered."""
    states: dict[str, int] = {}
    """As in ``state_read``. All others before ``next_offset`` are finished."""
    deliveries: dict[int, int] = {}


class FinishRestore(Request, tag="finish_restore"):
    """All messages are there: the topic is like any other from now on."""

    topic: str


class TokenCopy(msgspec.Struct, kw_only=True):
    """A token without its text: whoever has the text can use it where the copy is restored."""

    info: TokenInfo
    hash: bytes | None = None
    """SHA-256 of the secret. Nothing for a certificate."""

    def __repr__(self) -> str:
        return f"TokenCopy({self.info.id})"


class ExportTokens(Request, tag="export_tokens"):
    """Every token that still counts."""


class TokensExported(Reply, tag="tokens_exported"):
    tokens: list[TokenCopy]


class RestoreToken(Request, tag="restore_token"):
    """Let a token of a backup count here. One that is here already stays as it is.

    The body is the hash of its secret, or nothing for a certificate.
    """

    name: str
    token_id: str
    grants: list[str]
    created_us: int
    expires_us: int | None = None
