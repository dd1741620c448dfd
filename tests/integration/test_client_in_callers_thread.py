"""Calls of the blocking client run in the caller's own thread, whatever else goes on."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import quiver
from quiver import errors
from quiver.client.blocking import caller_loop
from tests.integration.client_node import ThreadNode

WAIT = "20s"
"""Longer than any of these tests may take."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadNode]:
    running = ThreadNode(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def client(node: ThreadNode) -> Iterator[quiver.Client]:
    with quiver.Client(node.url) as connected:
        connected.create_queue("jobs")
        yield connected


class Waiting:
    """A receive that waits in a thread of its own."""

    def __init__(self, client: quiver.Client) -> None:
        self.result: list[quiver.ReceivedMessage] | BaseException | None = None
        self._client = client
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        loop = client._caller_loop
        assert loop is not None
        begun = threading.Event()
        for _ in range(500):
            if loop._task is not None:
                break
            begun.wait(0.01)
        assert loop._task is not None, "the receive has begun"

    def _run(self) -> None:
        try:
            self.result = self._client.receive("jobs", wait=WAIT)
        except BaseException as error:
            self.result = error

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_calls_start_no_thread(client: quiver.Client) -> None:
    client.publish("jobs", b"one")
    (message,) = client.receive("jobs")
    client.ack("jobs", [message])
    assert client.describe_subscription("jobs").ready == 0
    assert not client._thread.is_running


def test_a_message_that_was_received_settles_itself(client: quiver.Client) -> None:
    client.publish("jobs", b"one")
    (message,) = client.receive("jobs")
    message.ack()
    assert client.describe_subscription("jobs").leased == 0
    assert not client._thread.is_running


def test_another_thread_is_served_while_one_waits(client: quiver.Client) -> None:
    waiting = Waiting(client)
    client.publish("jobs", b"for the one who waits")
    waiting.join()
    assert isinstance(waiting.result, list)
    assert [message.payload for message in waiting.result] == [b"for the one who waits"]


def test_it_works_inside_a_running_event_loop(client: quiver.Client) -> None:
    async def program() -> int:
        return client.publish("jobs", b"from a notebook").offset

    assert asyncio.run(program()) == 0


def test_a_consumers_messages_may_be_settled_through_the_client(client: quiver.Client) -> None:
    client.publish("jobs", b"one")
    with client.consumer("jobs") as messages:
        client.ack("jobs", [next(messages)])
    described = client.describe_subscription("jobs")
    assert (described.ready, described.leased) == (0, 0)


def test_closing_ends_a_call_in_another_thread(node: ThreadNode) -> None:
    client = quiver.Client(node.url)
    client.create_queue("jobs")
    waiting = Waiting(client)
    client.close()
    waiting.join()
    assert isinstance(waiting.result, errors.ConnectionLost)
    with pytest.raises(errors.InvalidRequest, match="closed"):
        client.publish("jobs", b"late")


def test_ctrl_c_ends_a_call_and_the_next_one_works(client: quiver.Client) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            client.receive("jobs", wait=WAIT)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    client.publish("jobs", b"after")
    (message,) = client.receive("jobs", wait=WAIT)
    assert message.payload == b"after"


def test_a_node_that_was_restarted_while_nobody_called_is_found_again(
    node: ThreadNode, client: quiver.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_loop, "_QUIET_S", 0)  # here a restart takes no longer than that
    client.publish("jobs", b"before")
    node.stop()
    node.start()
    client.create_topic("made after the restart".replace(" ", "-"))
    client.publish("jobs", b"after")
    assert [one.payload for one in client.receive("jobs")] == [b"before", b"after"]
    assert not client._thread.is_running


def test_a_client_that_was_forgotten_is_closed_quietly(
    node: ThreadNode, capfd: pytest.CaptureFixture[str]
) -> None:
    client = quiver.Client(node.url)
    client.create_queue("jobs")
    client.__dict__["itself"] = client  # so that it is freed with everything it has, in any order
    loop = client._caller_loop
    assert loop is not None
    del client
    with pytest.warns(ResourceWarning, match="unclosed client"):
        gc.collect()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and "close" in thread.name:
            thread.join(10)
    assert not loop.is_running
    assert "Traceback" not in capfd.readouterr().err


def test_what_was_received_in_a_transaction_is_leased_until_the_program_comes_to_it(
    client: quiver.Client,
) -> None:
    client.publish_many("jobs", [b"a", b"b"])
    with client.transaction() as transaction:
        for message in client.receive("jobs", 2, visibility="2s"):
            assert client.receive("jobs", wait="1.5s") == []  # the work on it takes so long
            transaction.ack(message)
    assert client.describe_subscription("jobs").leased == 0


def test_all_calls_of_a_group_are_one_consumer(node: ThreadNode, client: quiver.Client) -> None:
    client.create_queue("ordered", ordering="partition", partitions=4)
    waiting = Waiting(client)
    assert client.receive("ordered") == []  # on the loop thread, while the other waits
    client.publish("jobs", b"over")
    waiting.join()
    assert client.receive("ordered") == []
    described = client.describe_subscription("ordered")
    assert len(described.members) == 1
