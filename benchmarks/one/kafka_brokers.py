"""Kafka on this machine, if Maven has brought it and its Python client happens to be there.

Each broker is a private process on free ports of the loopback interface, a controller at the same
time, with all its files in a folder of the benchmark.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, Self

from benchmarks.harness.child import Child, running
from benchmarks.harness.ports import free_ports

_LIBRARIES = os.path.join(sys.prefix, "kafka")
"""Where ``make bench-tools`` puts it."""
_SECONDS_MAX = 90.0
_SETTINGS = """
process.roles=broker,controller
node.id={node}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={data}
offsets.topic.replication.factor=1
"""


def kafka_is_installed() -> bool:
    return bool(
        os.path.isdir(_LIBRARIES)
        and shutil.which("java")
        and importlib.util.find_spec("confluent_kafka")
    )


class Kafka:
    """Brokers that run."""

    def __init__(self, ports: list[int], brokers: list[Child]) -> None:
        self.servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        self._brokers = brokers

    def cpu_seconds(self) -> float:
        return sum(broker.cpu_seconds() for broker in self._brokers)

    def create(self, topic: str, partitions: int, replicas: int, *, synced: bool) -> None:
        """``synced``: each message is written to the disk before it is acknowledged."""
        from confluent_kafka.admin import AdminClient, NewTopic

        config = {"flush.messages": "1"} if synced else {}
        config["min.insync.replicas"] = str(min(2, replicas))
        client = AdminClient({"bootstrap.servers": self.servers})
        new = NewTopic(topic, partitions, replicas, config=config)
        for created in client.create_topics([new]).values():
            created.result(_SECONDS_MAX)

    def producer(self) -> KafkaProducer:
        return KafkaProducer(self.servers)


class KafkaProducer:
    """One that sends at once and is answered by all replicas in sync. Use it with ``with``."""

    def __init__(self, servers: str) -> None:
        from confluent_kafka import Producer

        settings = {
            "bootstrap.servers": servers,
            "acks": "all",
            "linger.ms": 0,
            "log_level": 0,  # brokers are ended while it is connected
        }
        self._producer: Any = Producer(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.flush(_SECONDS_MAX)

    def publish(self, topic: str, payload: bytes) -> None:
        """One message, and wait for its answer."""
        failed: list[object] = []
        self._producer.produce(
            topic, payload, on_delivery=lambda error, _: failed.append(error) if error else None
        )
        assert self._producer.flush(_SECONDS_MAX) == 0, "Kafka does not answer"
        assert not failed, f"Kafka refused a message: {failed[0]}"

    async def publish_soon(self, topic: str, payload: bytes) -> None:
        """The same on an event loop, beside others, while ``polled`` runs."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def answered(error: object, _: object) -> None:
            assert error is None, f"Kafka refused a message: {error}"
            loop.call_soon_threadsafe(done.set_result, None)

        self._producer.produce(topic, payload, on_delivery=answered)
        await done

    @asynccontextmanager
    async def polled(self) -> AsyncIterator[None]:
        """A thread looks for answers meanwhile."""
        ended = False

        def poll() -> None:
            while not ended:
                self._producer.poll(0.1)

        thread = asyncio.create_task(asyncio.to_thread(poll))
        try:
            yield
        finally:
            ended = True
            await thread


@contextmanager
def kafka_brokers(folder: str, count: int) -> Iterator[Kafka]:
    """So many brokers with default settings, but for where they listen and keep their files."""
    data = os.path.abspath(f"{folder}/kafka-{count}")
    free = free_ports(2 * count)
    ports, controllers = free[:count], free[count:]
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers))
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    with ExitStack() as stack:
        brokers = []
        for node, (port, controller_port) in enumerate(zip(ports, controllers, strict=True)):
            own = f"{data}/{node}"
            os.makedirs(own)
            settings = f"{own}/server.properties"
            with open(settings, "w") as file:
                file.write(
                    _SETTINGS.format(
                        node=node,
                        port=port,
                        controller_port=controller_port,
                        voters=voters,
                        data=f"{own}/log",
                    )
                )
            format_it = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings]
            with running(_java(*format_it), f"{own}/format.log") as formatting:
                assert formatting.wait(_SECONDS_MAX) == 0, f"see {own}/format.log"
            broker = stack.enter_context(running(_java("kafka.Kafka", settings), f"{own}/out.log"))
            brokers.append(Child(broker.pid, {}, 0.0))
        kafka = Kafka(ports, brokers)
        _wait_for(kafka, count)
        yield kafka


def _java(main: str, *words: str) -> list[str]:
    return ["java", "-Xmx1g", "-cp", f"{_LIBRARIES}/*", main, *words]


def _wait_for(kafka: Kafka, count: int) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": kafka.servers, "log_level": 0})
    deadline = time.monotonic() + _SECONDS_MAX
    while True:
        with suppress(KafkaException):
            if len(client.list_topics(timeout=2).brokers) == count:
                return
        assert time.monotonic() < deadline, "Kafka does not answer"
        time.sleep(0.2)
