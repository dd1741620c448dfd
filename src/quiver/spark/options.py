"""The options of ``format("quiver")``, checked on the driver before anything is read.

Names follow Spark's Kafka connector where they mean the same. Spark passes them as text and ignores case.
An unknown option is an error that lists the known ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from quiver.client import Tls
from quiver.client.transport.addresses import DEFAULT_URL, addresses_in
from quiver.errors import InvalidSetting
from quiver.model.topic import checked_name
from quiver.model.transaction import TIMEOUT_S_MAX
from quiver.model.units import seconds, size_bytes
from quiver.spark.columns import DEFAULT_COLUMNS, column_names
from quiver.spark.connections import Nodes
from quiver.spark.offsets import EARLIEST, LATEST, Offsets, offsets_from_json

_SPARKS_OWN = {"path", "checkpointlocation", "queryname", "outputmode", "header", "paths"}
_NODES = {"url", "timeout", "token", "cafile", "certificatefile", "keyfile"}
_READING = {
    *_NODES, "topic", "subscribe", "subscribepattern", "assign", "startingoffsets",
    "endingoffsets", "startingtimestamp", "endingtimestamp", "minpartitions",
    "maxoffsetspertrigger", "maxbytespertrigger", "failondataloss", "columns", "subscription",
    "view", "readfrom",
}  # fmt: skip
_WRITING = {*_NODES, "topic", "compression", "txnappid", "txnversion", "transactiontimeout"}
_TRANSACTION_TIMEOUT = "5m"


class TopicChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which topics to read: named, matching a pattern, or some partitions of them."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, int], ...] | None = None

    def has(self, topic: str, partition: int) -> bool:
        return self.partitions is None or (topic, partition) in self.partitions


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Where reading begins or ends: for all partitions alike, by partition, or by time."""

    everywhere: int = EARLIEST
    offsets: tuple[tuple[tuple[str, int], int], ...] | None = None
    time_us: int | None = None

    def of(self, place: tuple[str, int]) -> int | None:
        """The offset wanted in a partition; ``None`` if it is not named although others are."""
        return self.everywhere if self.offsets is None else dict(self.offsets).get(place)


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    nodes: Nodes = Nodes()
    topics: TopicChoice
    start: Bound | None = None
    end: Bound = Bound(everywhere=LATEST)
    partitions_min: int = 1
    offsets_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    subscription: str | None = None
    read_from: str = "leader"


class StateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A read of the state of a subscription: ``view=state``."""

    nodes: Nodes = Nodes()
    subscription: str
    columns: tuple[str, ...] | None = None


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    nodes: Nodes = Nodes()
    topic: str | None = None
    compression: str | None = None
    job: tuple[str, int] | None = None
    """A batch write that is done once, whoever repeats it: what it belongs to, and its number."""
    transaction_timeout_s: float = 300.0
    """How long what tasks have published stays when no task of the batch is running."""


def read_options(given: Mapping[str, str]) -> ReadOptions:
    options = _known(given, _READING)
    return ReadOptions(
        nodes=_nodes(options),
        topics=_topics(options),
        start=_bound(options, "starting"),
        end=_bound(options, "ending") or Bound(everywhere=LATEST),
        partitions_min=_count(options, "minPartitions") or 1,
        offsets_per_trigger_max=_count(options, "maxOffsetsPerTrigger"),
        bytes_per_trigger_max=_size(options, "maxBytesPerTrigger"),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        columns=column_names(options.get("columns")),
        subscription=options.get("subscription"),
        read_from=options.get("readfrom", "leader"),
    )


def state_options(given: Mapping[str, str]) -> StateOptions | None:
    """The options of a read of a subscription's state; ``None`` if topics are to be read."""
    options = {name.lower(): value for name, value in given.items()}
    view = options.get("view", "messages")
    if view == "messages":
        return None
    if view != "state":
        raise InvalidSetting(f"view must be messages or state, not {view!r}", setting="view")
    options = _known(given, {*_NODES, "subscription", "columns", "view"})
    if "subscription" not in options:
        raise InvalidSetting("view=state needs the option subscription")
    columns = options.get("columns")
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    return StateOptions(nodes=_nodes(options), subscription=options["subscription"], columns=names)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = _known(given, _WRITING)
    compression = options.get("compression")
    if compression not in (None, "none", "lz4", "zstd"):
        raise InvalidSetting(f"compression must be none, lz4 or zstd, not {compression!r}")
    return WriteOptions(
        nodes=_nodes(options),
        topic=options.get("topic"),
        compression=compression,
        job=_job(options),
        transaction_timeout_s=_transaction_timeout_s(options),
    )


def _transaction_timeout_s(options: Mapping[str, str]) -> float:
    timeout_s = seconds(options.get("transactiontimeout", _TRANSACTION_TIMEOUT))
    if not 1 <= timeout_s <= TIMEOUT_S_MAX:
        raise InvalidSetting(
            f"transactionTimeout must be 1 s to {TIMEOUT_S_MAX / 60:g} minutes",
            setting="transactionTimeout",
        )
    return timeout_s


def _job(options: Mapping[str, str]) -> tuple[str, int] | None:
    name, version = options.get("txnappid"), options.get("txnversion")
    if (name is None) != (version is None) or (version is not None and not version.isdigit()):
        raise InvalidSetting("txnAppId needs txnVersion, a number from 0, and the other way round")
    return None if name is None or version is None else (checked_name(name, "job"), int(version))


def _known(given: Mapping[str, str], names: set[str]) -> dict[str, str]:
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(options) - names - _SPARKS_OWN)
    if unknown:
        raise InvalidSetting(
            f"there is no option {unknown[0]!r}; the options here are {', '.join(sorted(names))}",
            setting=unknown[0],
        )
    return options


def _nodes(options: Mapping[str, str]) -> Nodes:
    url, timeout = options.get("url", DEFAULT_URL), options.get("timeout", "30s")
    addresses_in(url)
    seconds(timeout)
    files = [options.get(name) for name in ("cafile", "certificatefile", "keyfile")]
    tls = Tls(ca=files[0], certificate=files[1], key=files[2]) if any(files) else None
    return Nodes(url=url, timeout=timeout, token=options.get("token"), tls=tls)


def _topics(options: Mapping[str, str]) -> TopicChoice:
    chosen = [
        name
        for name in ("topic", "subscribe", "subscribepattern", "assign")
        if options.get(name) is not None
    ]
    if len(chosen) != 1:
        raise InvalidSetting("give one of the options topic, subscribe, subscribePattern or assign")
    value = options[chosen[0]]
    if chosen[0] == "subscribepattern":
        try:
            re.compile(value)
        except re.error as error:
            raise InvalidSetting(f"subscribePattern {value!r} is not a pattern: {error}") from error
        return TopicChoice(pattern=value)
    if chosen[0] == "assign":
        return _assigned(value)
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise InvalidSetting(f"{chosen[0]} names no topic")
    return TopicChoice(names=names)


def _assigned(value: str) -> TopicChoice:
    try:
        given = msgspec.json.decode(value, type=dict[str, list[int]])
    except msgspec.MsgspecError as error:
        raise InvalidSetting(
            f'assign must be JSON such as {{"orders": [0, 1]}}, not {value!r}'
        ) from error
    places = tuple((topic, partition) for topic, some in given.items() for partition in some)
    return TopicChoice(names=tuple(given), partitions=places)


def _bound(options: Mapping[str, str], which: str) -> Bound | None:
    offsets, moment = options.get(f"{which}offsets"), options.get(f"{which}timestamp")
    if offsets is not None and moment is not None:
        raise InvalidSetting(f"give {which}Offsets or {which}Timestamp, not both")
    if moment is not None:
        return Bound(time_us=_time_us(f"{which}Timestamp", moment))
    if offsets is None:
        return None
    if offsets.lower() in ("earliest", "latest"):
        return Bound(everywhere=EARLIEST if offsets.lower() == "earliest" else LATEST)
    parsed: Offsets = offsets_from_json(f"{which}Offsets", offsets)
    return Bound(offsets=tuple(sorted(parsed.items())))


def _time_us(setting: str, text: str) -> int:
    """Milliseconds since 1970, as the Kafka connector has them, or an ISO date and time."""
    if text.isascii() and text.isdigit():
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidSetting(
            f"{setting} must be milliseconds since 1970 or a time such as 2026-01-01T00:00, not {text!r}",
            setting=setting,
        ) from error
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return int(moment.timestamp() * 1_000_000)


def _count(options: Mapping[str, str], name: str) -> int | None:
    text: Any = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise InvalidSetting(f"{name} must be 1 or more, not {text!r}", setting=name)
    return int(text)


def _size(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    return None if text is None else size_bytes(int(text) if text.isdigit() else text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidSetting(f"{name} must be true or false, not {text!r}", setting=name)
    return text.lower() == "true"
