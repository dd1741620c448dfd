"""Producers, readers and queue consumers that go on whatever breaks, and write down what they saw.

They run in a thread with an event loop of its own, so that a test can break things meanwhile. The
history is the simulator's: its checker reads what real processes did.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

import msgspec

import quiver
from quiver.cluster.records import NodeId, PartitionId
from quiver.errors import QuiverError, TopicExists
from quiver.protocol import PartitionPlacement
from quiver.testing.simulator.history import Copy, History, Read, Send

_PATIENCE = "30s"
_AGAIN_S = 0.05
_PAUSE_S = 0.005
_STEP_S_MAX = 60.0
_PRODUCERS_PER_PARTITION = 2
_CONSUMERS = 2
_PADDING = random.Random(1).randbytes(1024).hex()


class Delivered(msgspec.Struct):
    """A value that a consumer was given, and when it was acknowledged, if that was confirmed."""

    value: str
    invoked: float
    acked: float | None = None


class Seen(msgspec.Struct):
    """What the clients saw."""

    history: History
    deliveries: list[Delivered]


class Workload:
    """Use it with ``with``; ``finish`` it once everything is healed.

    ``group`` is a subscription of the topic that is consumed in the order of its partitions, if there is one.
    """

    def __init__(
        self, url: str, *, topic: str = "orders", partitions: int = 2, group: str | None = None
    ) -> None:
        self.history = History(sends=[], reads=[], led=[], appended=[], copies={}, trouble=[])
        self.deliveries: list[Delivered] = []
        self.group_deliveries: list[Delivered] = []
        self.topic = topic
        self._consumed = {subscription_of(topic): self.deliveries}
        if group is not None:
            self._consumed[group] = self.group_deliveries
        self._url = url
        self._partitions = partitions
        self._ids = itertools.count()
        self._confirmed: Counter[int] = Counter()
        self._refused: dict[int, str] = {}
        self._producing = True
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.goes_on()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop_all)
        self._thread.join(_STEP_S_MAX)
        assert not self._thread.is_alive(), "the workload does not end"

    def goes_on(self, count: int = 5, within_s: float = _STEP_S_MAX) -> float:
        """Wait until so many more are confirmed in every partition; how many seconds that took."""
        began, before = time.monotonic(), Counter(self._confirmed)
        while any(self._confirmed[one] - before[one] < count for one in range(self._partitions)):
            self._require_all()
            assert time.monotonic() - began < within_s, (
                f"not {count} more in every partition within {within_s:g} s: "
                f"{dict(self._confirmed - before)}; last refused: {self._refused}; {self._placed()}"
            )
            time.sleep(0.005)
        return time.monotonic() - began

    def _require_all(self) -> None:
        """None of those who work has ended; if one did, this fails with its error."""
        for task in self._tasks:
            if task.done():
                task.result()
        assert self._thread.is_alive(), "the workload has ended"

    def _placed(self) -> list[PartitionPlacement]:
        """Who holds and leads what now, for whoever must find out why nothing goes on."""
        with contextlib.suppress(QuiverError), quiver.Client(self._url, timeout="5s") as client:
            placed = client.describe_cluster().partitions
            return [one for one in placed if one.topic == self.topic]
        return []

    def move_to(self, url: str) -> None:
        """Go on with another cluster: whatever is under way ends as it ends."""
        self._url = url

    def longest_pause_s(self, since: float) -> float:
        """The longest time after ``since`` (monotonic) in which a partition confirmed nothing."""
        longest = 0.0
        for partition in range(self._partitions):
            ended = sorted(
                send.ended
                for send in self.history.sends
                if send.outcome == "done" and send.partition == self._id(partition)
            )
            later = [since, *(moment for moment in ended if moment >= since)]
            longest = max([longest, *(b - a for a, b in itertools.pairwise(later))])
        return longest

    def finish(self) -> Seen:
        """Stop producing, let consumers finish, and read everything that is stored."""
        self._producing = False
        self._call(self._drain)
        return Seen(self.history, self.deliveries)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._tasks = [self._loop.create_task(one) for one in self._works()]
        self._loop.run_until_complete(asyncio.wait(self._tasks))
        self._loop.close()

    def _works(self) -> list[Coroutine[Any, Any, None]]:
        places = range(self._partitions)
        return [
            *(self._produce(one) for one in places for _ in range(_PRODUCERS_PER_PARTITION)),
            *(self._read(one) for one in places),
            *(
                self._consume(f"worker-{number}", subscription, deliveries)
                for subscription, deliveries in self._consumed.items()
                for number in range(_CONSUMERS)
            ),
            self._until_ended(),
        ]

    async def _until_ended(self) -> None:
        await asyncio.Event().wait()

    def _stop_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _call(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(2 * _STEP_S_MAX)

    def _client(self) -> quiver.AsyncClient:
        return quiver.AsyncClient(self._url, timeout=_PATIENCE)

    def _id(self, partition: int) -> PartitionId:
        return PartitionId(f"{self.topic}/{partition}")

    # ------------------------------------------------------------------ producing

    async def _produce(self, partition: int) -> None:
        """One value after the other; whoever is left without an answer goes on as another."""
        while self._producing:
            producer = next(self._ids)
            async with self._client() as client:
                for sequence in itertools.count():
                    if not self._producing or not await self._send(
                        client, partition, producer, sequence
                    ):
                        break
                    await asyncio.sleep(_PAUSE_S)

    async def _send(
        self, client: quiver.AsyncClient, partition: int, producer: int, sequence: int
    ) -> bool:
        send = Send(
            producer=producer,
            sequence=sequence,
            partition=self._id(partition),
            value=f"{producer}.{sequence}",
            invoked=time.monotonic(),
        )
        self.history.sends.append(send)
        try:
            stored = await client.publish(self.topic, payload_of(send.value), partition=partition)
        except QuiverError as error:
            self._refused[partition] = f"{error.code}: {error.message}"
            await asyncio.sleep(_AGAIN_S)
            return False
        finally:
            send.ended = time.monotonic()
        assert stored.offset is not None
        send.outcome, send.offset = "done", stored.offset
        self._confirmed[partition] += 1
        return True

    # ------------------------------------------------------------------ reading

    async def _read(self, partition: int) -> None:
        position = 0
        while True:
            url = self._url
            async with self._client() as client:
                while url == self._url:
                    position = await self._read_on(client, partition, position)
                    await asyncio.sleep(_AGAIN_S)

    async def _read_on(self, client: quiver.AsyncClient, partition: int, position: int) -> int:
        """Read what there is; where to go on."""
        invoked = time.monotonic()
        try:
            found = await self._stored(client, partition, position)
        except QuiverError:
            return position
        read = Read(
            reader=partition,
            partition=self._id(partition),
            invoked=invoked,
            ended=time.monotonic(),
            asked=position,
            epoch=-1,
            watermark=None,
            values=tuple(found),
        )
        self.history.reads.append(read)
        return found[-1][0] + 1 if found else position

    async def _stored(
        self, client: quiver.AsyncClient, partition: int, start: int
    ) -> list[tuple[int, str]]:
        reader = client.read(self.topic, partition=partition, start=start)
        try:
            return [(one.offset, value_in(one.payload)) async for one in reader.messages()]
        finally:
            await reader.close()

    # ------------------------------------------------------------------ consuming

    async def _consume(self, name: str, subscription: str, deliveries: list[Delivered]) -> None:
        while True:
            url = self._url
            async with self._client() as client:
                while url == self._url:
                    try:
                        await self._consume_some(client, name, subscription, deliveries)
                    except QuiverError:
                        await asyncio.sleep(_AGAIN_S)

    async def _consume_some(
        self, client: quiver.AsyncClient, name: str, subscription: str, deliveries: list[Delivered]
    ) -> None:
        invoked = time.monotonic()
        messages = await client.receive(subscription, 50, wait="1s", consumer=name)
        given = [Delivered(value_in(one.payload), invoked) for one in messages]
        deliveries += given
        if messages:
            await client.ack(subscription, messages)
            for one in given:
                one.acked = time.monotonic()

    # ------------------------------------------------------------------ the end

    async def _drain(self) -> None:
        async with self._client() as client:
            try:
                async with asyncio.timeout(_STEP_S_MAX):
                    while await self._is_unfinished(client):  # noqa: ASYNC110 - a node changes
                        await asyncio.sleep(_AGAIN_S)
            except TimeoutError:
                self.history.trouble.append(f"the queue is not done with within {_STEP_S_MAX:g} s")
            for partition in range(self._partitions):
                values = await self._stored(client, partition, 0)
                copy = Copy(
                    node=NodeId("drained"),
                    watermark=len(values),
                    values=tuple((offset, 0, value) for offset, value in values),
                )
                self.history.copies[self._id(partition)] = [copy]

    async def _is_unfinished(self, client: quiver.AsyncClient) -> bool:
        left = 0
        try:
            for name in self._consumed:
                info = await client.describe_subscription(name)
                left += (info.ready or 0) + (info.delayed or 0)
                left += (info.leased or 0) + (info.unseen or 0)
        except QuiverError:
            return True
        producing = any(send.ended < 0 for send in self.history.sends)
        return producing or left > 0 or self._is_owed()

    def _is_owed(self) -> bool:
        """Whether something is confirmed that no consumer was given: a lead may just be moving, and
        nobody counts what the partition holds."""
        confirmed = {one.value for one in self.history.sends if one.outcome == "done"}
        return any(
            confirmed - {one.value for one in deliveries} for deliveries in self._consumed.values()
        )


def payload_of(value: str) -> str:
    """The value, and enough after it that disks fill up."""
    return f"{value} {_PADDING}"


def value_in(payload: bytes) -> str:
    return payload.decode().partition(" ")[0]


def subscription_of(topic: str) -> str:
    return f"{topic}-workers"


def prepare(url: str, *, topic: str = "orders", partitions: int = 2, **settings: Any) -> None:
    """Make the topic and the subscription that a workload uses."""
    with quiver.Client(url, timeout=_PATIENCE) as client:
        with contextlib.suppress(TopicExists):
            client.create_topic(topic, partitions=partitions, **settings)
        client.create_subscription(
            subscription_of(topic),
            [topic],
            start="earliest",
            exist_ok=True,
            guarantee="exactly-once",
            visibility="5s",
            max_deliveries=1000,
        )
