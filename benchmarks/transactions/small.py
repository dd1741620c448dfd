"""Transactions of one message, one after the other and many at once, against plain publishes."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import uvloop

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import Child, served
from benchmarks.harness.rounds import in_turn
from benchmarks.harness.row import Row, Target, at_least
from benchmarks.one.loops import Measured, repeated, repeated_async
from quiver import AsyncClient, Client

_PAYLOAD = bytes(1024)
_MANY = 64

_ONE, _ONE_PLAIN = "one-message transactions, one after the other", "publish 1 KB, one in flight"
_CROWD = f"one-message transactions, {_MANY} at once"
_CROWD_PLAIN = f"publish 1 KB, {_MANY} in flight"
_TAKEN = "receive one, publish one and ack it in a transaction"
_TAKEN_PLAIN = "receive one, publish one and ack it"
_ROWS: tuple[tuple[str, str, Target | None, str], ...] = (
    (_ONE, _ONE_PLAIN, at_least(300), "blocking client"),
    (_CROWD, _CROWD_PLAIN, at_least(5_000), "one async client; plain publishes share batches"),
    (_TAKEN, _TAKEN_PLAIN, None, "blocking client, one after the other"),
)

Measure = Callable[[], Measured]


def publish_in_small_transactions(bench: Bench) -> list[Row]:
    seconds = bench.pick(20, 1) / 10
    with bench.folder() as folder, served(folder) as node:
        contestants = _contestants(node, seconds, bench.pick(10_000, 1_000))
        rounds: dict[str, list[Measured]] = {name: [] for name in contestants}
        for turn in range(bench.pick(5, 1)):
            for name in in_turn(contestants, turn):
                rounds[name].append(contestants[name]())
    return [
        row
        for name, plain, target, note in _ROWS
        for row in _rows(name, rounds[name], plain, rounds[plain], target, note)
    ]


def _rows(
    name: str,
    own: list[Measured],
    plain_name: str,
    plain: list[Measured],
    target: Target | None,
    note: str,
) -> list[Row]:
    ratios = (one.rate / other.rate for one, other in zip(own, plain, strict=True))
    return [
        Row(
            name=name,
            value=statistics.median(one.rate for one in own),
            unit="/s",
            yardstick=statistics.median(one.rate for one in plain),
            yardstick_name=plain_name,
            ratio=statistics.median(ratios),
            target=target,
            note=f"1 KB, fsync; {note}",
        ),
        Row(
            name=f"{name}: node CPU for each",
            value=statistics.median(one.cpu_us for one in own),
            unit="µs",
            yardstick=statistics.median(one.cpu_us for one in plain),
            yardstick_name=plain_name,
        ),
    ]


def _contestants(node: Child, seconds: float, backlog: int) -> dict[str, Measure]:
    with Client(node.url) as client:
        client.create_topic("small", durability="fsync")
        client.create_queue("taken", durability="fsync")

    def one_after_the_other(do: Callable[[Client], object]) -> Measured:
        with Client(node.url) as client:
            return repeated(lambda: do(client), seconds, node.cpu_seconds)

    def taken(do: Callable[[Client], object]) -> Measured:
        with Client(node.url) as client:
            client.purge("taken")
            client.publish_many("taken", [_PAYLOAD] * backlog)
            return repeated(lambda: do(client), seconds, node.cpu_seconds)

    async def at_once(do: Callable[[AsyncClient], object]) -> Measured:
        async with AsyncClient(node.url) as client:
            return await repeated_async(
                lambda: do(client),  # type: ignore[arg-type,return-value]
                seconds,
                node.cpu_seconds,
                _MANY,
            )

    return {
        _ONE: lambda: one_after_the_other(_publish_in_one),
        _ONE_PLAIN: lambda: one_after_the_other(lambda q: q.publish("small", _PAYLOAD)),
        _CROWD: lambda: uvloop.run(at_once(_publish_in_one_async)),
        _CROWD_PLAIN: lambda: uvloop.run(at_once(lambda q: q.publish("small", _PAYLOAD))),
        _TAKEN: lambda: taken(_take_in_one),
        _TAKEN_PLAIN: lambda: taken(_take),
    }


def _publish_in_one(client: Client) -> None:
    with client.transaction() as transaction:
        transaction.publish("small", _PAYLOAD)


async def _publish_in_one_async(client: AsyncClient) -> None:
    async with client.transaction() as transaction:
        await transaction.publish("small", _PAYLOAD)


def _take_in_one(client: Client) -> None:
    with client.transaction() as transaction:
        for message in client.receive("taken", 1):
            transaction.publish("small", message.payload)
            transaction.ack(message)


def _take(client: Client) -> None:
    messages = client.receive("taken", 1)
    for message in messages:
        client.publish("small", message.payload)
    client.ack("taken", messages)
