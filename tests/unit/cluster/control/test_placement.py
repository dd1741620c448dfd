"""Where partitions go: spread over zones, even, and with little movement."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quiver.cluster.control.placement import Assignment, Site, place
from quiver.cluster.records import NodeId, PartitionId


def sites(*zone_sizes: int) -> list[Site]:
    """Nodes in zones ``za``, ``zb``, … of the given sizes."""
    return [
        Site(NodeId(f"z{chr(97 + zone)}-{number}"), f"z{chr(97 + zone)}")
        for zone, size in enumerate(zone_sizes)
        for number in range(size)
    ]


def partitions(count: int, replicas: int = 3) -> dict[PartitionId, int]:
    return {PartitionId(f"topic/{index:04d}"): replicas for index in range(count)}


def loads(assignment: Assignment, nodes: list[Site]) -> list[int]:
    held = Counter(node for replicas in assignment.values() for node in replicas)
    return [held[site.node] for site in nodes]


def leads(assignment: Assignment, nodes: list[Site]) -> list[int]:
    led = Counter(replicas[0] for replicas in assignment.values() if replicas)
    return [led[site.node] for site in nodes]


def moved(before: Assignment, after: Assignment) -> int:
    return sum(len(set(after[one]) - set(before.get(one, ()))) for one in after)


clusters = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(lambda sizes: sites(*sizes))
equal_zones = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(
    lambda shape: sites(*[shape[0]] * shape[1])
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Site], dict[PartitionId, int], Assignment]:
    """A cluster, what it is to hold, and an arbitrary state it is in."""
    nodes = draw(clusters)
    wanted = partitions(draw(st.integers(1, 12)), draw(st.integers(1, 4)))
    router = st.sampled_from([*(site.node for site in nodes), NodeId("gone-1"), NodeId("gone-2")])
    current = {
        partition: tuple(draw(st.lists(router, max_size=5, unique=True))) for partition in wanted
    }
    return nodes, wanted, current


@given(histories())
def test_from_any_state_every_partition_is_whole_and_spread(
    history: tuple[list[Site], dict[PartitionId, int], Assignment],
) -> None:
    nodes, wanted, current = history
    zone_of = {site.node: site.zone for site in nodes}
    zone_sizes = Counter(zone_of.values())
    placed = place(wanted, nodes, current)
    assert placed.keys() == wanted.keys()
    for partition, replicas in placed.items():
        assert len(replicas) == len(set(replicas)) == min(wanted[partition], len(nodes))
        assert set(replicas) <= zone_of.keys()
        in_zone = Counter(zone_of[node] for node in replicas)
        fullest = max(in_zone.values())
        roomy = [in_zone[zone] for zone, size in zone_sizes.items() if in_zone[zone] < size]
        assert not roomy or fullest <= min(roomy) + 1


@given(histories())
def test_placing_again_moves_nothing(
    history: tuple[list[Site], dict[PartitionId, int], Assignment],
) -> None:
    nodes, wanted, current = history
    placed = place(wanted, nodes, current)
    assert place(wanted, nodes, placed) == placed


@given(equal_zones, st.integers(1, 30), st.integers(1, 4))
def test_zones_of_one_size_are_filled_and_led_evenly(
    nodes: list[Site], count: int, replicas: int
) -> None:
    placed = place(partitions(count, replicas), nodes)
    assert max(loads(placed, nodes)) - min(loads(placed, nodes)) <= 1
    assert max(leads(placed, nodes)) - min(leads(placed, nodes)) <= 1


@given(st.integers(1, 6), st.integers(1, 30), st.integers(1, 4))
def test_a_new_node_gets_its_share_and_nothing_else_moves(
    size: int, count: int, replicas: int
) -> None:
    wanted = partitions(count, min(replicas, size))
    before = place(wanted, sites(size))
    grown = sites(size + 1)
    after = place(wanted, grown, before)
    newcomer = grown[-1].node
    share = sum(map(len, before.values())) // (size + 1)
    assert loads(after, grown)[-1] == moved(before, after) in (share, share + 1)
    assert all(set(after[one]) <= {*before[one], newcomer} for one in after), (
        "only the newcomer gained"
    )


@given(st.integers(2, 7), st.integers(1, 30), st.integers(1, 3))
def test_a_node_that_is_drained_gives_all_and_hardly_anything_else_moves(
    size: int, count: int, replicas: int
) -> None:
    nodes = sites(size)
    wanted = partitions(count, min(replicas, size - 1))
    before = place(wanted, nodes)
    leaving, staying = nodes[0].node, nodes[1:]
    after = place(wanted, staying, before)
    given_up = sum(leaving in replicas for replicas in before.values())
    assert given_up <= moved(before, after) <= given_up + 2
    assert max(loads(after, staying)) - min(loads(after, staying)) <= 1
    assert max(leads(after, staying)) - min(leads(after, staying)) <= 1


def test_three_zones_hold_one_replica_each() -> None:
    nodes = sites(1, 2, 3)
    for replicas in place(partitions(20), nodes).values():
        assert {node[:2] for node in replicas} == {"za", "zb", "zc"}


def test_fewer_replicas_drop_the_copy_in_the_fullest_place() -> None:
    nodes = sites(2, 1)
    before = {PartitionId("t/0"): (NodeId("za-0"), NodeId("za-1"), NodeId("zb-0"))}
    (after,) = place({PartitionId("t/0"): 2}, nodes, before).values()
    assert {node[:2] for node in after} == {"za", "zb"}


def test_the_leader_stays_where_it_is_when_that_is_even() -> None:
    nodes = sites(3)
    before = {
        PartitionId("t/0"): (NodeId("za-1"), NodeId("za-0")),
        PartitionId("t/1"): (NodeId("za-2"), NodeId("za-1")),
        PartitionId("t/2"): (NodeId("za-0"), NodeId("za-2")),
    }
    assert place(partitions(0) | dict.fromkeys(before, 2), nodes, before) == before


def test_without_any_node_nothing_is_placed() -> None:
    assert place(partitions(2), []) == {
        PartitionId("topic/0000"): (),
        PartitionId("topic/0001"): (),
    }


def test_a_thousand_partitions_on_nine_nodes_are_even() -> None:
    nodes = sites(3, 3, 3)
    placed = place(partitions(1000), nodes)
    assert max(loads(placed, nodes)) - min(loads(placed, nodes)) <= 1
    assert max(leads(placed, nodes)) - min(leads(placed, nodes)) <= 1
