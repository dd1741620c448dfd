"""Channels by address, calls that find their way, and topics that are remembered."""

from __future__ import annotations

import asyncio
import random

import pytest

from quiver import protocol
from quiver.client.transport.backoff import RetryBackoff
from quiver.client.transport.channel import Channel
from quiver.client.transport.cluster import Cluster, TopicLayout
from quiver.client.transport.pool import Pool
from quiver.errors import (
    ConnectionLost,
    ProtocolError,
    QuiverError,
    TopicNotFound,
    UnsupportedProtocol,
)
from tests.aio import async_test
from tests.unit.client.scripted_node import (
    HastyClock,
    ScriptedChannel,
    ScriptedDialer,
    ScriptedNode,
)


class Network:
    """A dialer of several nodes, some of which are down."""

    def __init__(self, *addresses: str) -> None:
        self.nodes = {address: ScriptedNode() for address in addresses}
        self.dialled: list[str] = []

    async def dial(self, address: str) -> Channel:
        self.dialled.append(address)
        return await ScriptedDialer(self.nodes[address]).dial(address)

    async def close(self) -> None:
        pass


def pool_of(network: Network) -> Pool:
    return Pool(network, list(network.nodes), clock=HastyClock(), chance=random.Random(1))


class TestReplacement:
    """A forwarder connects with any node: if that one is wrong about others, another is asked."""

    @async_test
    async def test_through_a_forwarder_another_node_is_asked_next(self) -> None:
        pool = pool_of(network := Network("forwarder:1"))
        first = await pool.channel("forwarder:1")
        assert isinstance(first, ScriptedChannel)
        first.is_forwarded = True
        pool.replace("forwarder:1")
        pool.doubt("forwarder:1")
        address, second = await pool.any_channel()
        assert (address, network.dialled) == ("forwarder:1", ["forwarder:1"] * 2)
        assert second is not first
        assert first.is_open  # for those who still use it
        await pool.close()
        assert not first.is_open

    @async_test
    async def test_one_channel_at_a_time_is_kept_and_none_is_replaced_too_often(self) -> None:
        clock = HastyClock()
        pool = Pool(Network("forwarder:1"), ["forwarder:1"], clock=clock)
        channels = []
        for _ in range(3):
            channels.append(channel := await pool.channel("forwarder:1"))
            assert isinstance(channel, ScriptedChannel)
            channel.is_forwarded = True
            pool.replace("forwarder:1")
            again = await pool.channel("forwarder:1")
            assert isinstance(again, ScriptedChannel)
            again.is_forwarded = True
            pool.replace("forwarder:1")
            assert await pool.channel("forwarder:1") is again
            clock.now += 20
        await asyncio.sleep(0)
        assert [one.is_open for one in channels] == [False, False, True]
        await pool.close()

    @async_test
    async def test_a_channel_to_a_node_itself_stays(self) -> None:
        pool = pool_of(Network("a:1"))
        first = await pool.channel("a:1")
        pool.replace("a:1")
        assert await pool.channel("a:1") is first
        await pool.close()


class TestPool:
    @async_test
    async def test_a_node_is_dialled_once_for_all_who_ask(self) -> None:
        pool = pool_of(network := Network("a:1"))
        channels = await asyncio.gather(*(pool.channel("a:1") for _ in range(10)))
        assert len(set(map(id, channels))) == 1
        assert network.dialled == ["a:1"]
        await pool.close()

    @async_test
    async def test_a_broken_channel_is_replaced(self) -> None:
        pool = pool_of(Network("a:1"))
        first = await pool.channel("a:1")
        assert isinstance(first, ScriptedChannel)
        first.lose()
        assert pool.open_channel("a:1") is None
        second = await pool.channel("a:1")
        assert second.is_open
        await pool.close()
        assert not second.is_open

    @async_test
    async def test_one_who_stops_waiting_does_not_stop_the_others(self) -> None:
        pool = pool_of(Network("a:1"))
        impatient = asyncio.create_task(pool.channel("a:1"))
        patient = asyncio.create_task(pool.channel("a:1"))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).is_open
        await pool.close()

    @async_test
    async def test_any_node_that_answers_will_do_and_is_asked_again(self) -> None:
        pool = pool_of(network := Network("a:1", "b:1", "c:1"))
        network.nodes["a:1"].is_down = network.nodes["b:1"].is_down = True
        address, channel = await pool.any_channel()
        assert (address, network.dialled) == ("c:1", ["a:1", "b:1", "c:1"])
        assert await pool.any_channel() == (address, channel)
        await pool.close()

    @async_test
    async def test_when_no_node_answers_all_are_named(self) -> None:
        pool = pool_of(network := Network("a:1", "b:1"))
        network.nodes["a:1"].is_down = network.nodes["b:1"].is_down = True
        with pytest.raises(ConnectionLost, match=r"a:1.*b:1"):
            await pool.any_channel()
        assert not pool.has_connected
        await pool.close()
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await pool.channel("a:1")

    @async_test
    async def test_a_node_that_is_down_is_tried_less_and_less_often(self) -> None:
        network = Network("a:1")
        clock = HastyClock()
        pool = Pool(network, ["a:1"], clock=clock, chance=random.Random(1))
        network.nodes["a:1"].is_down = True
        for _ in range(30):
            with pytest.raises(ConnectionLost):
                await pool.channel("a:1")
        assert 5 < clock.now < 30 * RetryBackoff().most_s
        await pool.close()

    @async_test
    async def test_a_node_that_is_doubted_is_asked_last(self) -> None:
        pool = pool_of(network := Network("a:1", "b:1"))
        assert (await pool.any_channel())[0] == "a:1"
        pool.doubt("a:1")
        assert pool.any_open() is None
        assert (await pool.any_channel())[0] == "b:1"
        network.nodes["b:1"].is_down = True
        channel = pool.open_channel("b:1")
        assert isinstance(channel, ScriptedChannel)
        channel.lose()
        assert (await pool.any_channel())[0] == "a:1", "better than nobody"
        await pool.close()


class TestBackoff:
    def test_pauses_are_drawn_from_zero_to_a_bound_that_doubles(self) -> None:
        backoff, chance = RetryBackoff(first_s=1, most_s=10), random.Random(7)
        for failures, bound in ((0, 0), (1, 1), (2, 2), (4, 8), (5, 10), (5000, 10)):
            pauses = [backoff.pause_s(failures, chance) for _ in range(200)]
            assert 0 <= min(pauses) <= max(pauses) <= bound
            assert max(pauses) >= bound * 0.9


class TestCalls:
    @async_test
    async def test_a_wrong_address_is_told_at_once(self) -> None:
        network = Network("a:1")
        network.nodes["a:1"].is_down = True
        cluster = Cluster(pool_of(network), clock=HastyClock(), timeout_s=1000)
        with pytest.raises(ConnectionLost):
            await cluster.call(protocol.Ping(), repeatable=True)
        assert len(network.dialled) == 1
        await cluster.close()

    @async_test
    async def test_a_node_that_was_reached_before_is_waited_for(self) -> None:
        network, clock = Network("a:1"), HastyClock()
        cluster = Cluster(Pool(network, ["a:1"], clock=clock), clock=clock, timeout_s=60)
        await cluster.call(protocol.Ping(), repeatable=True)
        node = network.nodes["a:1"]
        node.is_down = True
        channel = cluster.pool.open_channel("a:1")
        assert isinstance(channel, ScriptedChannel)
        channel.lose()
        waiting = asyncio.create_task(cluster.call(protocol.Ping(), repeatable=False))
        while node.dials < 5:  # noqa: ASYNC110 - dialling has no event
            await asyncio.sleep(0)
        node.is_down = False
        await waiting
        node.is_down = True
        channel = cluster.pool.open_channel("a:1")
        assert isinstance(channel, ScriptedChannel)
        channel.lose()
        with pytest.raises(ConnectionLost):
            await cluster.call(protocol.Ping(), repeatable=True)
        assert clock.now >= 60
        await cluster.close()

    @pytest.mark.parametrize("repeatable", [True, False])
    @async_test
    async def test_only_what_may_be_repeated_is_sent_again(self, repeatable: bool) -> None:
        network = Network("a:1")
        cluster = Cluster(pool_of(network), clock=HastyClock(), timeout_s=60)
        node = network.nodes["a:1"]
        await cluster.call(protocol.Ping(), repeatable=True)
        node.open.clear()
        call = asyncio.create_task(cluster.call(protocol.Ping(), repeatable=repeatable))
        while node.count(protocol.Ping) < 2:  # noqa: ASYNC110 - requests have no event
            await asyncio.sleep(0)
        channel = cluster.pool.open_channel("a:1")
        assert isinstance(channel, ScriptedChannel)
        channel.lose()
        node.open.set()
        if repeatable:
            await call
        else:
            with pytest.raises(ConnectionLost):
                await call
        assert node.count(protocol.Ping) == 2 + repeatable
        await cluster.close()

    @async_test
    async def test_an_error_that_will_not_pass_is_not_retried(self) -> None:
        class Refusing:
            dials = 0

            async def dial(self, address: str) -> Channel:
                self.dials += 1
                raise UnsupportedProtocol("too new")

            async def close(self) -> None:
                pass

        dialer, clock = Refusing(), HastyClock()
        cluster = Cluster(Pool(dialer, ["a:1"], clock=clock), clock=clock, timeout_s=60)
        with pytest.raises(UnsupportedProtocol):
            await cluster.call(protocol.Ping(), repeatable=True)
        assert dialer.dials == 1
        await cluster.close()


class TestTopics:
    @async_test
    async def test_what_did_not_hold_is_asked_of_another_node(self) -> None:
        """The first may be cut off from the others, and not know who leads."""
        network = Network("a:1", "b:1")
        for node in network.nodes.values():
            node.add_topic("orders", partitions=1)
        cluster = Cluster(pool_of(network), clock=HastyClock(), timeout_s=60)
        assert (await cluster.layout("orders")).asked == "a:1"
        cluster.doubt("orders")
        assert (await cluster.refresh("orders")).asked == "b:1"
        await cluster.close()

    @async_test
    async def test_a_topic_is_described_once_until_it_is_forgotten(self) -> None:
        network = Network("a:1")
        node = network.nodes["a:1"]
        node.add_topic("orders", partitions=4)
        cluster = Cluster(pool_of(network), clock=HastyClock(), timeout_s=60)
        layouts = await asyncio.gather(*(cluster.layout("orders") for _ in range(5)))
        assert len(set(map(id, layouts))) == 1
        assert node.count(protocol.DescribeTopic) == 1
        assert layouts[0].partitions == [0, 1, 2, 3]
        cluster.forget("orders")
        await cluster.layout("orders")
        assert node.count(protocol.DescribeTopic) == 2
        with pytest.raises(TopicNotFound):
            await cluster.layout("invoices")
        await cluster.close()

    def test_a_partition_is_asked_for_at_its_leader_or_at_the_node_that_told(self) -> None:
        info = ScriptedNode().add_topic("orders", partitions=2)
        info.partitions[1].leader = "b:1"
        layout = TopicLayout(info, "a:1")
        assert [layout.address(partition) for partition in (0, 1)] == ["a:1", "b:1"]

    def test_ranges_that_leave_keys_out_are_not_believed(self) -> None:
        info = ScriptedNode().add_topic("orders", partitions=2)
        info.partitions[0].first_hash = 5
        with pytest.raises(ProtocolError, match="lacks key ranges"):
            TopicLayout(info, "a:1")
        info.partitions.clear()
        with pytest.raises(QuiverError):
            TopicLayout(info, "a:1")
