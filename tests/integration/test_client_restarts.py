"""The client when things end: nodes that stop or are killed, forks, and programs that just exit."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

import quiver
from tests.integration.client_node import ProcessNode, ThreadNode

pytestmark = pytest.mark.process


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[ProcessNode]:
    running = ProcessNode(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadNode]:
    running = ThreadNode(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.close()


def disturb(act: Callable[[], None], times: int) -> threading.Thread:
    """Do something a few times, a moment apart, while the test goes on."""

    def run() -> None:
        for _ in range(times):
            time.sleep(0.2)
            act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def numbers_while(thread: threading.Thread) -> Iterator[int]:
    """Numbers from 0 on, at a moderate pace, until the thread has ended."""
    for number in count():
        if number % 100 == 0:
            if not thread.is_alive():
                return
            time.sleep(0.002)
        yield number


def read_numbers(client: quiver.Client, partitions: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    for message in client.read("orders").messages():
        found[message.partition].append(int(message.payload[:8]))
    return found


class TestNodesThatStop:
    @pytest.mark.parametrize("how", ["kill", "stop"])
    def test_a_producer_goes_on_where_the_node_left_off(
        self, killable: ProcessNode, how: str
    ) -> None:
        def restart() -> None:
            getattr(killable, how)()
            killable.start()

        with quiver.Client(killable.url) as client:
            client.create_topic("orders", partitions=2)
            with client.producer("orders", batch_bytes="64KiB") as producer:
                for number in numbers_while(disturb(restart, 2)):
                    producer.send(b"%08d" % number + bytes(200), partition=number % 2)
            found = read_numbers(client, 2)
        assert found[0] == list(range(0, number + 1, 2))
        assert found[1] == list(range(1, number + 1, 2))

    def test_a_reader_that_follows_misses_and_repeats_nothing(self, killable: ProcessNode) -> None:
        def restart() -> None:
            killable.kill()
            killable.start()

        found: list[int] = []
        with quiver.Client(killable.url) as client:
            client.create_topic("orders")
            reader = client.read("orders", follow=True)

            def read() -> None:
                for message in reader.messages():
                    if message.payload == b"end":
                        return
                    found.append(int(message.payload))

            reading = threading.Thread(target=read)
            reading.start()
            with client.producer("orders", batch_count=50) as producer:
                for number in numbers_while(disturb(restart, 2)):
                    producer.send(b"%08d" % number)
                producer.send(b"end")
            reading.join(60)
            reader.close()
        assert found == list(range(number + 1))

    def test_publishes_wait_for_a_node_that_comes_back(self, node: ThreadNode) -> None:
        with quiver.Client(node.url) as client:
            client.create_topic("orders")
            client.publish("orders", b"before")
            node.stop()
            published: list[quiver.Published] = []
            waiting = threading.Thread(
                target=lambda: published.append(client.publish("orders", b"after"))
            )
            waiting.start()
            node.start()
            waiting.join(30)
            assert [each.offset for each in published] == [1]


FORK = """
import os, sys, quiver
client = quiver.Client(sys.argv[1])
producer = client.producer("orders")
producer.send(b"parent before").result()
reader = client.read("orders", follow=True)
next(reader)
child = os.fork()
if child == 0:
    assert client.publish("orders", b"child by client").offset is not None
    producer.send(b"child by producer").result()
    try:
        next(reader)
    except quiver.errors.InvalidRequest:
        client.publish("orders", b"child has no reader")
    client.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
producer.send(b"parent after").result()
assert client.publish("orders", b"parent by client").offset is not None
client.close()
"""

EXIT = """
import sys, quiver
producer = quiver.Client(sys.argv[1]).producer("orders", linger="1m")
for number in range(1000):
    producer.send(b"%08d" % number)
"""

NAMED = """
import sys, time, quiver
with quiver.Client(sys.argv[1]) as client:
    with client.producer("orders", name="import", batch_count=100) as producer:
        for number in range(int(sys.argv[2])):
            producer.send(b"%08d" % number, sequence=number)
            if number % 500 == 0:
                print(number, flush=True)
                time.sleep(0.001)
"""


def run_program(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # Development mode also tells of callbacks that took long: of a busy machine.
    lines = done.stderr.splitlines(keepends=True)
    done.stderr = "".join(line for line in lines if not line.startswith("Executing <"))
    return done


class TestProcesses:
    def test_client_and_producer_begin_anew_in_a_forked_child(self, node: ThreadNode) -> None:
        with quiver.Client(node.url) as client:
            client.create_topic("orders")
            ended = run_program(FORK, node.url)
            assert (ended.returncode, ended.stderr) == (0, "")
            found = [message.text() for message in client.read("orders").messages()]
            assert found == [
                "parent before",
                "child by client",
                "child by producer",
                "child has no reader",
                "parent after",
                "parent by client",
            ]

    def test_a_program_that_just_ends_has_sent_everything(self, node: ThreadNode) -> None:
        with quiver.Client(node.url) as client:
            client.create_topic("orders")
            ended = run_program(EXIT, node.url)
            assert ended.returncode == 0
            assert read_numbers(client, 1)[0] == list(range(1000))

    def test_a_rerun_after_a_kill_stores_each_line_once(self, node: ThreadNode) -> None:
        lines = 20_000
        with quiver.Client(node.url) as client:
            client.create_topic("orders", partitions=3)
            first = subprocess.Popen(
                [sys.executable, "-c", NAMED, node.url, str(lines)],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert first.stdout is not None
            for line in first.stdout:
                if int(line) >= lines // 2:
                    break
            first.kill()
            first.communicate()
            stored = sum(map(len, read_numbers(client, 3).values()))
            assert 0 < stored < lines
            ended = run_program(NAMED, node.url, str(lines))
            assert (ended.returncode, ended.stderr) == (0, "")
            found = read_numbers(client, 3)
        assert sorted(sum(found.values(), [])) == list(range(lines))  # noqa: RUF017
        for numbers in found.values():
            assert numbers == sorted(numbers)
