"""Transactions of 10,000 messages over three partitions, against a producer without transactions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from benchmarks.harness.bench import Bench
from benchmarks.harness.child import served
from benchmarks.harness.rounds import compare
from benchmarks.harness.row import Row, ratio_at_least
from quiver import Client, Producer

_PARTITIONS = 3
_MESSAGES = 10_000
_PAYLOAD = bytes(100)
_PLAIN = "the same without a transaction"


def publish_in_large_transactions(bench: Bench) -> list[Row]:
    messages = bench.pick(_MESSAGES, 300)
    times, rounds = bench.pick(20, 1), bench.pick(9, 1)
    keys = [f"{number}" for number in range(messages)]
    rows = messages // _PARTITIONS
    table = pa.table({"payload": pa.array([_PAYLOAD] * rows, pa.binary())})

    def send_each(send: Callable[..., object]) -> None:
        for key in keys:
            send(_PAYLOAD, key=key)

    def send_tables(send: Callable[[pa.Table], object]) -> None:
        for _ in range(_PARTITIONS):  # each is a batch, and goes to another partition
            send(table)

    with bench.folder() as folder, served(folder) as node, Client(node.url) as client:
        client.create_topic("large", partitions=_PARTITIONS, durability="fsync")
        with client.producer("large") as producer:
            one_by_one = compare(
                rounds,
                lambda: _rate(times, messages, lambda: _each_in_transaction(client, send_each)),
                lambda: _rate(times, messages, lambda: _each_plain(producer, send_each)),
            )
            as_tables = compare(
                rounds,
                lambda: _rate(times, messages, lambda: _tables_in_transaction(client, send_tables)),
                lambda: _rate(times, messages, lambda: _tables_plain(producer, send_tables)),
            )
    of = f"{messages:,} messages of 100 bytes, {_PARTITIONS} partitions, fsync"
    return [
        Row(
            name=f"transactions of {messages:,} messages, {how}",
            value=compared.value,
            unit="msg/s",
            yardstick=compared.yardstick,
            yardstick_name=_PLAIN,
            ratio=compared.ratio,
            target=ratio_at_least(0.85),
            note=f"{of}; one transaction after the other; without: send() and a flush",
        )
        for how, compared in (("one by one with keys", one_by_one), ("as tables", as_tables))
    ]


def _rate(times: int, messages: int, publish: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(times):
        publish()
    return times * messages / (time.perf_counter() - began)


def _each_in_transaction(client: Client, send_each: Callable[..., None]) -> None:
    with client.transaction() as transaction:
        send_each(partial(transaction.publish, "large"))


def _each_plain(producer: Producer, send_each: Callable[..., None]) -> None:
    send_each(producer.send)
    producer.flush()


def _tables_in_transaction(client: Client, send_tables: Callable[..., None]) -> None:
    with client.transaction() as transaction:
        send_tables(partial(transaction.publish_table, "large"))


def _tables_plain(producer: Producer, send_tables: Callable[..., None]) -> None:
    send_tables(producer.send_arrow)
    producer.flush()
