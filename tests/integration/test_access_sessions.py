"""What a principal meets while it is connected: revocation, quotas, others' receipts and names."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quiver import AsyncClient, protocol
from quiver.config import Quotas, Security
from quiver.edge.auth.tokens import TokenStore
from quiver.edge.limits.failed_logins import BURST
from quiver.errors import (
    InvalidReceipt,
    InvalidRequest,
    ProducerFenced,
    QuotaExceeded,
    Unauthenticated,
)
from tests.integration.edge_node import Running, edge_test, running, until
from tests.integration.native_peer import Hangup, batch_of

ASKED = Security(authentication=True)
ALL = ("publish:*", "consume:*", "admin:*")


def tokens_of(run: Running) -> TokenStore:
    return run.node.services.authority.tokens


async def token(run: Running, name: str, *grants: str) -> str:
    _, text = await tokens_of(run).create(name, list(grants or ALL))
    assert text is not None
    return text


def client(run: Running, text: str, timeout_s: float = 30) -> AsyncClient:
    return AsyncClient(f"quiver://{run.address}", token=text, timeout=timeout_s)


class TestRevocation:
    @edge_test
    async def test_the_next_request_is_refused_at_once(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            info, text = await tokens_of(run).create("a", list(ALL))
            peer = await run.peer(token=text)
            await peer.create("orders")
            await tokens_of(run).revoke(info.id)
            with pytest.raises(Unauthenticated):
                await peer.store("orders", batch_of(b"late"))

    @edge_test
    async def test_a_receive_that_waits_ends_with_the_token(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            info, text = await tokens_of(run).create("a", list(ALL))
            async with client(run, text) as mine:
                await mine.create_queue("emails")
                waiting = asyncio.create_task(mine.receive("emails", wait="20s"))
                await until(lambda: run.counter("quiver_requests_total{call=receive}") == 1)
                await tokens_of(run).revoke(info.id)
                async with asyncio.timeout(15):
                    with pytest.raises(Unauthenticated, match="expired or was revoked"):
                        await waiting
            await until(lambda: not run.connections)

    @edge_test
    async def test_other_tokens_of_the_same_name_go_on(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            old, _ = await tokens_of(run).create("a", list(ALL))
            peer = await run.peer(token=await token(run, "a"))
            await tokens_of(run).revoke(old.id)
            assert (await peer.create("orders")).name == "orders"


class TestQuotas:
    @edge_test
    async def test_a_publisher_over_its_rate_is_slowed_down_and_loses_nothing(
        self, tmp_path: Path
    ) -> None:
        quotas = Quotas(requests_per_second=50)
        async with running(tmp_path, security=ASKED, quotas=quotas) as run:
            peer = await run.peer(token=await token(run, "a"))
            await peer.create("orders", durability="os")
            began = asyncio.get_running_loop().time()
            sent = [peer.publish("orders", batch_of(b"%d" % number)) for number in range(99)]
            for request_id in sent:
                await peer.expect(request_id, protocol.Published)
            assert asyncio.get_running_loop().time() - began > 0.7, "a second for the fifty over"
            assert len(await peer.payloads("orders")) == 99

    @edge_test
    async def test_who_is_over_by_more_than_the_patience_is_refused(self, tmp_path: Path) -> None:
        quotas = Quotas(bytes_per_second=10_000)
        async with running(tmp_path, security=ASKED, quotas=quotas) as run:
            text = await token(run, "a")
            peer = await run.peer(token=text)
            await peer.create("orders", durability="os")
            await peer.store("orders", batch_of(b"x" * 100_000))
            other = await run.peer(token=text)  # the quota is the principal's, not the connection's
            with pytest.raises(QuotaExceeded) as refused:
                await other.store("orders", batch_of(b"y"))
            assert refused.value.details["quota"] == "bytes"
            assert 5 < refused.value.details["retry_after_s"] < 10
            neighbour = await run.peer(token=await token(run, "b"))
            await neighbour.store("orders", batch_of(b"z"))

    @edge_test
    async def test_the_client_waits_as_long_as_it_is_told(self, tmp_path: Path) -> None:
        quotas = Quotas(bytes_per_second=50_000)
        async with running(tmp_path, security=ASKED, quotas=quotas) as run:
            text = await token(run, "a")
            async with client(run, text) as one, client(run, text) as two:
                await one.create_topic("orders", durability="os")
                await one.publish("orders", b"x" * 125_000)
                await two.publish("orders", b"y")
                assert (await two.describe_topic("orders")).partitions[0].next_offset == 2

    @edge_test
    async def test_connections_beyond_the_quota_are_refused(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED, quotas=Quotas(connections_max=2)) as run:
            text = await token(run, "a")
            first = await run.peer(token=text)
            await run.peer(token=text)
            refused = await run.peer(greet=False)
            with pytest.raises(QuotaExceeded, match="connections"):
                await refused.greet(text)
            await run.peer(token=await token(run, "b"))
            await first.close()
            await until(lambda: len(run.connections) == 2)
            await run.peer(token=text)

    @edge_test
    async def test_a_consumer_holds_no_more_than_its_quota(self, tmp_path: Path) -> None:
        quotas = Quotas(inflight_messages_max=5)
        async with (
            running(tmp_path, security=ASKED, quotas=quotas) as run,
            client(run, await token(run, "a")) as mine,
        ):
            await mine.create_queue("emails")
            await mine.publish_many("emails", [b"%d" % number for number in range(8)])
            held = await mine.receive("emails", 100)
            assert len(held) == 5
            refused = await _refused(mine, "emails")
            assert refused.details["quota"] == "inflight_messages"
            await mine.ack("emails", held[:2])
            assert len(await mine.receive("emails", 100)) == 2

    @edge_test
    async def test_topics_beyond_the_quota_are_refused(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED, quotas=Quotas(topics_max=2)) as run:
            peer = await run.peer(token=await token(run, "a", "admin:a.*"))
            other = await run.peer(token=await token(run, "b", "admin:b.*"))
            for name in ("a.1", "a.2"):
                await peer.create(name)
            with pytest.raises(QuotaExceeded) as refused:
                await peer.create("a.3")
            assert refused.value.details["quota"] == "topics"
            await other.create("b.1")

    @edge_test
    async def test_a_dead_letter_queue_counts_only_where_it_has_a_name_of_its_own(
        self, tmp_path: Path
    ) -> None:
        async with running(tmp_path, security=ASKED, quotas=Quotas(topics_max=2)) as run:
            grants = ("admin:a.*", "publish:a.*", "consume:a.*")
            async with client(run, await token(run, "a", *grants), timeout_s=2) as mine:
                for name in ("a.1", "a.2"):
                    await mine.create_queue(name)  # and a.1.dlq, and a.2.dlq
                with pytest.raises(QuotaExceeded):
                    await mine.create_queue("a.3")
                with pytest.raises(QuotaExceeded):
                    await mine.alter_subscription("a.1", dead_letter="a.lost")


async def _refused(mine: AsyncClient, queue: str) -> QuotaExceeded:
    """How a receive is refused that is not tried again."""
    _, channel = await mine._read_cluster.pool.any_channel()
    with pytest.raises(QuotaExceeded) as refused:
        await channel.call(protocol.Receive(subscription=queue))
    return refused.value


class TestOthers:
    @edge_test
    async def test_another_queues_receipt_settles_nothing(self, tmp_path: Path) -> None:
        async with (
            running(tmp_path, security=ASKED) as run,
            client(run, await token(run, "a", "admin:a", "publish:a", "consume:a")) as one,
            client(run, await token(run, "b", "admin:b", "publish:b", "consume:b")) as two,
        ):
            await one.create_queue("a")
            await two.create_queue("b")
            await one.publish("a", b"mine")
            (message,) = await one.receive("a", wait="20s")
            with pytest.raises(InvalidReceipt):
                await two.ack("b", [message.receipt])
            await one.ack("a", [message.receipt])

    @edge_test
    async def test_nobody_takes_over_a_producers_name_of_another(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            one = await run.peer(token=await token(run, "a"))
            two = await run.peer(token=await token(run, "b"))
            await one.create("orders")
            async with client(run, await token(run, "a")) as mine:
                producer = mine.producer("orders", name="nightly")
                await (await producer.send(b"1", sequence=1))
                await two.ask(protocol.OpenProducer(name="nightly"), expect=protocol.ProducerOpened)
                await (await producer.send(b"2", sequence=2))
                await one.ask(protocol.OpenProducer(name="nightly"), expect=protocol.ProducerOpened)
                with pytest.raises(ProducerFenced):
                    await (await producer.send(b"3", sequence=3))
                await producer.abort()

    @edge_test
    async def test_listings_leave_out_what_is_not_the_callers(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            async with client(run, await token(run, "root")) as root:
                for name in ("a.1", "b.1"):
                    await root.create_queue(name)
                assert (await root.describe_node()).counters
            async with client(run, await token(run, "a", "publish:a.*")) as mine:
                own = ["a.1", "a.1.dlq"]
                assert [topic.name for topic in await mine.list_topics()] == own
                assert [one.name for one in await mine.list_subscriptions()] == own
                assert (await mine.describe_node()).counters == {}


class TestGuessing:
    @edge_test
    async def test_wrong_tokens_do_not_lock_out_a_valid_one(self, tmp_path: Path) -> None:
        async with running(tmp_path, security=ASKED) as run:
            text = await token(run, "a")
            codes = []
            for number in range(BURST + 10):
                peer = await run.peer(greet=False)
                try:
                    await peer.greet(f"qv_{number:016x}_{'0' * 64}")
                except (Unauthenticated, QuotaExceeded, Hangup) as error:
                    codes.append(type(error).__name__)
                await peer.close()
            assert codes[:BURST] == ["Unauthenticated"] * BURST
            assert "QuotaExceeded" in codes[BURST:]
            peer = await run.peer(greet=False)
            await peer.greet(text)  # at once: only wrong ones have to wait


@edge_test
async def test_a_node_that_asks_nobody_makes_no_tokens(tmp_path: Path) -> None:
    async with running(tmp_path) as run, AsyncClient(f"quiver://{run.address}") as anybody:
        with pytest.raises(InvalidRequest, match="turn on security"):
            await anybody.create_token("mine", ["admin:*"])


@edge_test
async def test_what_is_delivered_at_most_once_is_not_held(tmp_path: Path) -> None:
    quotas = Quotas(inflight_messages_max=5)
    async with (
        running(tmp_path, security=ASKED, quotas=quotas) as run,
        client(run, await token(run, "a")) as mine,
    ):
        await mine.create_queue("emails", guarantee="at-most-once")
        await mine.publish_many("emails", [b"%d" % number for number in range(12)])
        received = []
        while len(received) < 12:
            received += [one.payload for one in await mine.receive("emails", 100, wait="20s")]
        assert received == [b"%d" % number for number in range(12)]


@edge_test
async def test_a_messages_status_leaves_out_subscriptions_of_others(tmp_path: Path) -> None:
    async with (
        running(tmp_path, security=ASKED) as run,
        client(run, await token(run, "root")) as root,
        client(run, await token(run, "a", "consume:orders", "consume:a.*")) as mine,
    ):
        await root.create_topic("orders")
        for name in ("a.billing", "b.billing"):
            await root.create_subscription(name, ["orders"])
        stored = await root.publish("orders", b"1")
        assert stored.id is not None
        for who, seen in ((root, {"a.billing", "b.billing"}), (mine, {"a.billing"})):
            status = await who.message_status("orders", stored.id)
            assert {one.subscription for one in status.subscriptions} == seen
