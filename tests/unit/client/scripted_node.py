"""A node in memory for tests of the client: the protocol's meaning without disk or network.

It keeps topics, judges producers' batches as a partition does, and stores them as entries. What
befalls each publish is decided by a script: the answer may come, be an error, or be lost together
with the connection, before or after the batch was stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from quiver import protocol
from quiver.client.transport.channel import CALL_TIMEOUT_S, Answer
from quiver.errors import (
    ConnectionLost,
    OffsetOutOfRange,
    Overloaded,
    PartitionNotFound,
    ProducerFenced,
    QuiverError,
    RequestTimeout,
    SequenceGap,
    StaleLayout,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from quiver.model.batch import Bytes, StoredBatch, UnstoredBatch
from quiver.model.envelope import open_batch, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.key_hash import even_ranges
from quiver.model.layout import middle_of
from quiver.model.topic import Acks, TopicSettings

NOW_US = 1_700_000_000_000_000


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something is so; the test's own time limit is the bound."""
    while not condition():  # noqa: ASYNC110 - what happens inside has no event to wait for
        await asyncio.sleep(0.0005)


class Fate(Enum):
    """What befalls a request."""

    ANSWERED = "answered"
    REQUEST_LOST = "the connection breaks before the node has it"
    REPLY_LOST = "the connection breaks before the client has the answer"
    OVERLOADED = "refused, not stored"
    UNAVAILABLE = "stored, though the answer says it failed"
    UNANSWERED = "stored, and never answered"


class HastyClock:
    """A clock on which sleeping takes no time: it jumps to where the sleeper wants to wake."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time_us(self) -> Microseconds:
        return Microseconds(NOW_US + round(self.now * 1e6))

    async def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)
        await asyncio.sleep(0)


class _Session(msgspec.Struct):
    epoch: int
    next_sequence: int = 0
    stored: dict[tuple[int, int], StoredBatch] = {}
    last_user_sequence: int | None = None


class MemoryPartition:
    def __init__(self) -> None:
        self.entries: list[StoredBatch] = []
        self.sessions: dict[int, _Session] = {}
        self.start_offset = 0

    @property
    def next_offset(self) -> int:
        return int(self.entries[-1].next_offset) if self.entries else 0

    def payloads(self) -> list[bytes]:
        return [
            payload
            for entry in self.entries
            for payload in entry.record_batch().column("payload").to_pylist()
        ]

    def publish(
        self, batch: UnstoredBatch, refusal: QuiverError | None = None
    ) -> tuple[StoredBatch | None, bool]:
        """The entry, and whether it was stored before."""
        session = self._session(batch)
        if session is not None and batch.sequence != session.next_sequence:
            if batch.sequence > session.next_sequence:
                raise SequenceGap(expected=session.next_sequence)
            return session.stored.get((batch.sequence, batch.count)), True
        if refusal is not None:
            raise refusal
        entry = store_batch(
            batch,
            base_offset=Offset(self.next_offset),
            epoch=LeaderEpoch(1),
            append_time=Microseconds(NOW_US + len(self.entries)),
            durable_offset=Offset(0),
        )
        self.entries.append(entry)
        if session is not None:
            session.next_sequence = batch.sequence + batch.count
            session.stored[batch.sequence, batch.count] = entry
            rows = entry.record_batch()
            if "sequence" in rows.schema.names:
                session.last_user_sequence = rows.column("sequence")[-1].as_py()
        return entry, False

    def _session(self, batch: UnstoredBatch) -> _Session | None:
        if not batch.producer_id or batch.sequence < 0:
            return None
        known = self.sessions.get(batch.producer_id)
        if known is None or batch.producer_epoch > known.epoch:
            last = None if known is None else known.last_user_sequence
            known = _Session(batch.producer_epoch, last_user_sequence=last)
            self.sessions[batch.producer_id] = known
        elif batch.producer_epoch < known.epoch:
            raise ProducerFenced(epoch=known.epoch)
        return known


class ScriptedNode:
    """``fate`` is asked for every publish, with its number from 1 on."""

    def __init__(self) -> None:
        self.topics: dict[str, protocol.TopicInfo] = {}
        self.partitions: dict[str, list[MemoryPartition]] = {}
        self.fate: Callable[[int], Fate | QuiverError] = lambda _: Fate.ANSWERED
        self.publishes = 0
        self.requests: list[protocol.AnyRequest] = []
        self.dials = 0
        self.is_down = False
        self.open = asyncio.Event()
        """Cleared, the node answers nothing, and requests pile up on their connections."""
        self.open.set()
        self._names: dict[str, tuple[int, int]] = {}
        self._last_id = 0

    def add_topic(self, name: str, partitions: int = 1, **settings: object) -> protocol.TopicInfo:
        info = protocol.TopicInfo(
            name=name,
            number=len(self.topics) + 1,
            layout=1,
            settings=TopicSettings(partitions=partitions, **settings),  # type: ignore[arg-type]
            created_us=NOW_US,
            partitions=[
                protocol.PartitionInfo(index=index, first_hash=first)
                for index, first in enumerate(even_ranges(partitions))
            ],
        )
        self.topics[name] = info
        self.partitions[name] = [MemoryPartition() for _ in range(partitions)]
        return info

    def split(self, topic: str, index: int) -> None:
        """A partition gives half of its keys to a new one."""
        info = self.topics[topic]
        firsts = [partition.first_hash for partition in info.partitions]
        info.partitions.append(
            protocol.PartitionInfo(index=len(firsts), first_hash=middle_of(firsts, index))
        )
        self.partitions[topic].append(MemoryPartition())
        info.layout += 1

    def payloads(self, topic: str) -> list[list[bytes]]:
        return [partition.payloads() for partition in self.partitions[topic]]

    def count(self, kind: type[protocol.Request]) -> int:
        return sum(isinstance(request, kind) for request in self.requests)

    # ------------------------------------------------------------------ answers

    def answer(self, request: protocol.AnyRequest, body: bytes) -> tuple[protocol.AnyReply, bytes]:
        match request:
            case protocol.CreateTopic():
                if request.name in self.topics:
                    raise TopicExists()
                created = self.add_topic(request.name, **msgspec.structs.asdict(request.settings))
                return protocol.Topic(topic=created), b""
            case protocol.DescribeTopic():
                return protocol.Topic(topic=self._topic(request.name)), b""
            case protocol.ListTopics():
                return protocol.Topics(topics=list(self.topics.values())), b""
            case protocol.DeleteTopic():
                self._topic(request.name)
                del self.topics[request.name], self.partitions[request.name]
                return protocol.Done(), b""
            case protocol.OpenProducer():
                return self._open_producer(request), b""
            case protocol.Publish():
                return self._publish(request, body), b""
            case protocol.Fetch():
                return self._fetch(request)
            case protocol.FindOffset():
                return protocol.OffsetFound(offset=self._find(request)), b""
        return protocol.Done(), b""

    def _topic(self, name: str) -> protocol.TopicInfo:
        if name not in self.topics:
            raise TopicNotFound(f"there is no topic {name!r}")
        return self.topics[name]

    def _partition(self, topic: str, index: int) -> MemoryPartition:
        if index >= len(self._topic(topic).partitions):
            raise PartitionNotFound()
        return self.partitions[topic][index]

    def _open_producer(self, request: protocol.OpenProducer) -> protocol.ProducerOpened:
        if request.name is None:
            self._last_id += 1
            return protocol.ProducerOpened(producer_id=self._last_id, producer_epoch=0)
        known = self._names.get(request.name)
        if known is None:
            self._last_id += 1
            known = (self._last_id, -1)
        self._names[request.name] = known = (known[0], known[1] + 1)
        assert request.topic is not None
        last = {
            index: partition.sessions[known[0]].last_user_sequence
            for index, partition in enumerate(self.partitions[request.topic])
            if known[0] in partition.sessions
        }
        sequences = {index: sequence for index, sequence in last.items() if sequence is not None}
        return protocol.ProducerOpened(
            producer_id=known[0], producer_epoch=known[1], last_sequences=sequences
        )

    def _publish(self, request: protocol.Publish, body: bytes) -> protocol.AnyReply:
        info = self._topic(request.topic)
        partition = self._partition(request.topic, request.partition)
        is_stale = request.layout not in (0, info.layout)
        refusal = StaleLayout(layout=info.layout) if is_stale else None
        entry, duplicate = partition.publish(open_batch(body), refusal)
        if request.acks is Acks.NONE:
            return protocol.Done()
        return protocol.Published(
            base_offset=-1 if entry is None else entry.base_offset,
            append_time=0 if entry is None else entry.append_time,
            topic_number=info.number,
            duplicate=duplicate,
        )

    def _fetch(self, request: protocol.Fetch) -> tuple[protocol.AnyReply, bytes]:
        partition = self._partition(request.topic, request.partition)
        if not partition.start_offset <= request.offset <= partition.next_offset:
            raise OffsetOutOfRange(
                f"offset {request.offset} is not there",
                start_offset=partition.start_offset,
                next_offset=partition.next_offset,
            )
        chosen: list[Bytes] = []
        for entry in partition.entries:
            if entry.next_offset > request.offset:
                chosen += entry.buffers()
                if sum(map(len, chosen)) >= request.bytes_max:
                    break
        reply = protocol.Fetched(
            start_offset=partition.start_offset,
            next_offset=partition.next_offset,
            topic_number=self.topics[request.topic].number,
        )
        return reply, b"".join(chosen)

    def _find(self, request: protocol.FindOffset) -> int:
        partition = self._partition(request.topic, request.partition)
        if request.at == "earliest":
            return partition.start_offset
        if request.time_us is not None:
            for entry in partition.entries:
                if entry.append_time >= request.time_us:
                    return int(entry.base_offset)
        return partition.next_offset


class ScriptedChannel:
    """A connection to the node: requests are taken up one after the other."""

    def __init__(self, node: ScriptedNode) -> None:
        self.is_open = True
        self.is_congested = False
        self.is_forwarded = False
        self._node = node
        self._queue: deque[tuple[protocol.AnyRequest, bytes, asyncio.Future[Answer]]] = deque()
        self._unanswered: list[asyncio.Future[Answer]] = []
        self._last_id = 0
        self._went_well: set[int] = set()
        """The ids of publishes that are stored and holds that are kept."""
        self._working: asyncio.Task[None] | None = None

    def start(
        self,
        request: protocol.AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self.is_open:
            future.set_exception(ConnectionLost("the connection is closed"))
            return future
        request.id = self._last_id = self._last_id + 1
        self._node.requests.append(request)
        self._queue.append((request, b"".join(bytes(part) for part in body), future))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return future

    async def call(
        self,
        request: protocol.AnyRequest,
        body: Sequence[Bytes] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Answer:
        return await self.start(request, body, timeout_s)

    async def drain(self) -> None:
        if not self.is_open:
            raise ConnectionLost("the connection is closed")

    async def close(self) -> None:
        self.lose()
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])

    def lose(self) -> None:
        """The connection breaks: whatever has no answer gets none."""
        self.is_open = False
        waiting = [future for _, _, future in self._queue] + self._unanswered
        self._queue.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionLost("the connection broke"))

    async def _work(self) -> None:
        while self._queue:
            await self._node.open.wait()
            await asyncio.sleep(0)
            if not self._queue or not self.is_open:
                return
            request, body, future = self._queue[0]
            fate: Fate | QuiverError = Fate.ANSWERED
            if isinstance(request, protocol.Publish):
                self._node.publishes += 1
                fate = self._node.fate(self._node.publishes)
            if fate is Fate.REQUEST_LOST:
                self.lose()
                return
            self._queue.popleft()
            self._befall(fate, request, body, future)

    def _answer(self, request: protocol.AnyRequest, body: bytes) -> tuple[protocol.AnyReply, bytes]:
        is_after = isinstance(request, protocol.EndTransactionAfter)
        if is_after and not self._went_well.issuperset(request.after):
            return protocol.TransactionInfo(transaction=request.transaction, state="open"), b""
        return self._node.answer(request, body)

    def _befall(
        self,
        fate: Fate | QuiverError,
        request: protocol.AnyRequest,
        body: bytes,
        future: asyncio.Future[Answer],
    ) -> None:
        try:
            if isinstance(fate, QuiverError):
                raise fate
            if fate is Fate.OVERLOADED:
                raise Overloaded()
            reply, data = self._answer(request, body)
            if fate is Fate.REPLY_LOST:
                self._unanswered.append(future)
                self.lose()
            elif fate is Fate.UNAVAILABLE:
                raise Unavailable()
            elif fate is Fate.UNANSWERED:
                raise RequestTimeout()
            elif not future.done():
                # As over a wire, the client gets a copy of its own.
                copy = protocol.decode_reply(memoryview(protocol.encode(reply)))
                future.set_result((copy, memoryview(data)))
                if isinstance(reply, protocol.Published) or (
                    isinstance(reply, protocol.Settled) and not reply.stale
                ):
                    self._went_well.add(request.id)
        except QuiverError as error:
            if not future.done():
                future.set_exception(error)


class ScriptedDialer:
    def __init__(self, node: ScriptedNode) -> None:
        self.node = node
        self.channels: list[ScriptedChannel] = []

    async def dial(self, address: str) -> ScriptedChannel:
        self.node.dials += 1
        await asyncio.sleep(0)
        if self.node.is_down:
            raise ConnectionLost(f"cannot connect to {address}")
        channel = ScriptedChannel(self.node)
        self.channels.append(channel)
        return channel

    def lose_all(self) -> None:
        for channel in self.channels:
            channel.lose()

    async def close(self) -> None:
        pass
