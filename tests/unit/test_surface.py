"""The public surface: what a program may import from ``quiver``."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from pages.python_api import INNER

import quiver
from quiver import errors
from quiver.client import (
    AsyncClient,
    AsyncProducer,
    AsyncReader,
    AsyncTransaction,
    Client,
    Producer,
    Reader,
    Transaction,
)

SURFACE = [
    "AccessRefused",
    "Acks",
    "AlertInfo",
    "Alerts",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncTransaction",
    "Backoff",
    "Channel",
    "Client",
    "Clock",
    "ClusterInfo",
    "Compression",
    "ConnectionLost",
    "Consumer",
    "ConsumerSilent",
    "CopiedPartition",
    "CopiedTopic",
    "CorruptLog",
    "DeadLetter",
    "DedupIdPending",
    "Delivery",
    "Dialer",
    "DiskFull",
    "Durability",
    "Duration",
    "FolderInUse",
    "Guarantee",
    "HandledStore",
    "HandledTransaction",
    "Idempotent",
    "InvalidBatch",
    "InvalidFilter",
    "InvalidReceipt",
    "InvalidRequest",
    "InvalidSetting",
    "LeaderChanged",
    "LogError",
    "Message",
    "MessageNotFound",
    "MessageOptions",
    "MessageStatus",
    "MessageTooLarge",
    "MetadataConflict",
    "MetadataError",
    "MetadataUnavailable",
    "MirrorCompression",
    "MirrorDiverged",
    "MirrorExists",
    "MirrorInfo",
    "MirrorLoop",
    "MirrorNotFound",
    "MirrorSettings",
    "Node",
    "NodeInfo",
    "NodeNotFound",
    "NotACluster",
    "NotEnoughReplicas",
    "NotLeader",
    "OffsetOutOfRange",
    "OnDisconnect",
    "OpenTransactionInfo",
    "Ordering",
    "Origin",
    "OutgoingMessage",
    "Overflow",
    "Overloaded",
    "PartitionInfo",
    "PartitionNotFound",
    "PartitionPlacement",
    "PartitionProgress",
    "PartitionUnavailable",
    "PeekedMessage",
    "PendingMessages",
    "PermissionDenied",
    "Position",
    "Producer",
    "ProducerError",
    "ProducerFenced",
    "PromotedTopic",
    "ProtocolError",
    "Published",
    "Push",
    "QuiverError",
    "QuotaExceeded",
    "ReadOnlySubscription",
    "ReadOnlyTopic",
    "Reader",
    "ReceivedMessage",
    "ReplicaInfo",
    "RequestTimeout",
    "Retention",
    "RetentionScope",
    "SequenceGap",
    "SessionNotFound",
    "ShuttingDown",
    "Size",
    "StaleLayout",
    "StaleReceipt",
    "SubscriptionExists",
    "SubscriptionInfo",
    "SubscriptionNotFound",
    "SubscriptionSettings",
    "SubscriptionStatus",
    "TableDelivery",
    "Tls",
    "TokenInfo",
    "TokenNotFound",
    "TopicExists",
    "TopicFull",
    "TopicInfo",
    "TopicNotFound",
    "TopicSettings",
    "Transaction",
    "TransactionAborted",
    "TransactionError",
    "TransactionFenced",
    "TransactionInDoubt",
    "TransactionNotFound",
    "TransactionState",
    "TransactionTimedOut",
    "TransactionTooLarge",
    "Unauthenticated",
    "Unavailable",
    "UnknownCall",
    "Unread",
    "UnsupportedFormat",
    "UnsupportedProtocol",
    "Work",
    "__version__",
    "errors",
    "idempotent",
    "open",
    "open_async",
]
"""Everything that a program may import. Names are added; none is ever taken away."""
PROTOCOL_CLASSES = {"Channel"}
"""What they take and give are messages of the native protocol, not types for programs."""
NOT_RAISED_BY_CALLS = {"LogFailed", "LogClosed", "LeaseLost", "WatchCompacted", "NodeGone"}
"""Errors inside and between nodes. The answer to a client has another."""
INTERNAL = {
    "hold",
    "tick",
    "add",
    "open",
    "abort",
    "full",
    "next_chunk",
    "opened_sender",
    "opened_validator",
}
"""Methods by which the parts of an async client work together."""
KNOWN_TO_PROGRAMS = {*sys.stdlib_module_names, "pyarrow", "pyroaring"}
SPECIAL = {"__iter__", "__next__", "__enter__", "__aiter__", "__anext__", "__aenter__", "__await__"}


def types_of(public: Any) -> Iterator[tuple[str, type]]:
    """Types of Quiver and of others in the annotations of a function, or of what is public of a class."""
    if not inspect.isclass(public):
        yield from annotated(public, getattr(public, "__name__", ""))
        return
    if public.__name__ in PROTOCOL_CLASSES:
        return
    for name in inspect.get_annotations(public):
        if not name.startswith("_") and name not in INNER:
            yield from leaves(get_type_hints(public)[name], f"{public.__name__}.{name}")
    if public.__name__ in {"Client", "AsyncClient"}:  # a program makes the others by its methods
        yield from annotated(public.__init__, public.__name__)
    for name, member in inspect.getmembers(public):
        if name in SPECIAL or not (name.startswith("_") or name in INNER | INTERNAL):
            yield from annotated(getattr(member, "fget", member), f"{public.__name__}.{name}")


def annotated(function: Any, where: str) -> Iterator[tuple[str, type]]:
    if inspect.isfunction(inspect.unwrap(function)):
        for hint in get_type_hints(inspect.unwrap(function)).values():
            yield from leaves(hint, where)


def leaves(hint: Any, where: str) -> Iterator[tuple[str, type]]:
    parts = hint if isinstance(hint, list) else [get_origin(hint), *get_args(hint)]
    if inspect.isclass(hint) and hint.__module__.partition(".")[0] not in KNOWN_TO_PROGRAMS:
        yield where, hint
    for part in parts:
        if part is not None and part is not hint:
            yield from leaves(part, where)


class TestSurface:
    def test_it_is_exactly_this(self) -> None:
        assert quiver.__all__ == SURFACE
        for name in quiver.__all__:
            assert getattr(quiver, name) is not None

    def test_it_has_every_type_that_a_public_call_takes_or_gives(self) -> None:
        public = [getattr(quiver, name) for name in quiver.__all__]
        missing = {
            (one.__name__, where)
            for where, one in itertools.chain.from_iterable(map(types_of, public))
            if one not in public
        }
        assert not missing

    def test_it_has_every_error_that_a_call_raises(self) -> None:
        raised = {
            one.__name__
            for one in errors.error_classes().values()
            if not issubclass(one, errors.HttpError | errors.BackupError)
            and one.__name__ not in NOT_RAISED_BY_CALLS
        }
        public = [getattr(quiver, name) for name in quiver.__all__]
        assert raised == {
            one.__name__
            for one in public
            if inspect.isclass(one) and issubclass(one, errors.QuiverError)
        }

    def test_a_name_that_is_not_there_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'Klient'"):
            quiver.Klient  # noqa: B018

    @pytest.mark.process
    def test_importing_quiver_loads_nothing_that_takes_long(self) -> None:
        check = "import quiver, sys; sys.exit(bool({'pyarrow', 'asyncio'} & set(sys.modules)))"
        assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0

    @pytest.mark.parametrize(
        ("blocking", "original"),
        [
            (Client, AsyncClient),
            (Producer, AsyncProducer),
            (Reader, AsyncReader),
            (Transaction, AsyncTransaction),
        ],
    )
    def test_blocking_classes_have_the_methods_of_the_async_ones(
        self, blocking: type, original: type
    ) -> None:
        for name, method in inspect.getmembers(original):
            if name.startswith("_") or name in INTERNAL:
                continue
            assert hasattr(blocking, name), f"{blocking.__name__} has no {name}"
            if inspect.isfunction(method):
                mine = inspect.signature(getattr(blocking, name)).parameters
                assert list(mine) == list(inspect.signature(method).parameters)
