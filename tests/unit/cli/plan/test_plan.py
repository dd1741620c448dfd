"""The arithmetic of a plan: what a workload needs follows from a measurement, and every bound holds."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.cli.plan.capacity import DISK_FILL_MAX, plan_for
from quiver.cli.plan.measurement import Measurement, Point, load, save
from quiver.cli.plan.sample import measure_sample
from quiver.cli.plan.workload import Workload, rate_per_s
from quiver.errors import InvalidSetting
from quiver.model.topic import Compression

DAY_S = 86_400
MEASURED = Measurement(
    taken="2026-01-01T00:00:00+00:00",
    software="quiver test",
    cores=2,
    points=[
        Point(
            size_bytes=size,
            publish_per_s=publish,
            deliver_per_s=publish / 2,
            read_per_s=publish * 4,
            stored_bytes=size + 20,
        )
        for size, publish in ((100, 400_000), (1000, 100_000), (10_000, 10_000))
    ],
    send_per_s=50_000,
    latency_ms={"p50": 2.0, "p99": 10.0},
    sync_ms={"p50": 1.0, "p99": 5.0},
    disk_write_bytes_per_s=1e9,
)


def workload(**given: float | None) -> Workload:
    asked = {"rate_per_s": 100_000, "size_bytes": 1000, "retention_s": 7 * DAY_S, **given}
    return Workload(**asked)  # type: ignore[arg-type]


class TestBillion:
    """A billion messages of 1 KB a day, kept for a week, three replicas: reckoned by hand."""

    plan = plan_for(workload(rate_per_s=1e9 / DAY_S, peak=3), MEASURED)

    def test_messages_and_bytes_kept(self) -> None:
        assert self.plan.messages_kept == pytest.approx(7e9)
        assert self.plan.kept_bytes == pytest.approx(7e9 * 1020)

    def test_disk_counts_replicas_and_segments_that_are_not_removed_yet(self) -> None:
        unremoved = self.plan.partitions * 3 * (256 << 20)
        assert self.plan.disk_bytes == pytest.approx(3 * 7e9 * 1020 + unremoved)
        assert self.plan.disk_bytes_per_node == pytest.approx(
            self.plan.disk_bytes / self.plan.nodes / DISK_FILL_MAX
        )

    def test_nodes_are_for_the_peak(self) -> None:
        # publish 10 µs, two replicas at 10 + 2.5 µs, one delivery at 20 µs: 55 µs x 34,722/s
        assert self.plan.nodes == 4  # 1.91 nodes at work, 60% busy at most
        assert self.plan.needs[0].utilisation == pytest.approx(34_722.2 * 55e-6 / 4, rel=1e-4)

    def test_partitions_are_for_the_largest_reason_and_even_over_nodes(self) -> None:
        assert self.plan.partitions_for == {"rate": 1, "consumers": 1, "size": 36, "balance": 8}
        assert self.plan.partitions == 36

    def test_network_is_what_goes_in_and_out_of_a_node(self) -> None:
        flow = 1e9 / DAY_S * 3 * 1020 / 4
        assert self.plan.network_in_per_node == pytest.approx(flow * 3)
        assert self.plan.network_out_per_node == pytest.approx(flow * 3)  # two copies, one reader

    def test_latency_is_the_measured_one_and_a_replicas_sync_and_trip(self) -> None:
        assert self.plan.latency_quiet_ms == {"p50": 3.5, "p99": 15.5}
        busy = self.plan.needs[0].utilisation
        assert self.plan.latency_at_load_ms["p50"] == pytest.approx(3.5 / (1 - busy))

    def test_what_breaks_first_is_the_scarcest_resource(self) -> None:
        assert self.plan.first_to_break.resource == "node time"
        assert self.plan.breaks_at_per_s == pytest.approx(4 / 55e-6)


class TestResources:
    def test_a_slow_disk_asks_for_nodes(self) -> None:
        slow = msgspec.structs.replace(MEASURED, disk_write_bytes_per_s=1e7)
        plan = plan_for(workload(), slow)
        assert plan.first_to_break.resource == "disk writes"
        assert plan.nodes == 51  # 100,000/s x 1,020 bytes x 3 / 10 MB/s / 0.6

    def test_a_small_disk_asks_for_nodes(self) -> None:
        plan = plan_for(workload(rate_per_s=1000, node_disk_bytes=100 * 10**9), MEASURED)
        assert plan.first_to_break.resource == "disk space"
        assert plan.disk_bytes_per_node <= 100e9

    def test_a_slow_network_asks_for_nodes(self) -> None:
        plan = plan_for(workload(node_network_bytes_per_s=10e6, subscriptions=10), MEASURED)
        assert plan.first_to_break.resource == "network"

    def test_compression_shrinks_disk_and_network_alike(self) -> None:
        loose, packed = (plan_for(workload(packed=ratio), MEASURED) for ratio in (1.0, 0.25))
        assert packed.kept_bytes == pytest.approx(loose.kept_bytes / 4)
        assert packed.network_in_per_node == pytest.approx(loose.network_in_per_node / 4)

    def test_a_group_has_a_partition_for_each_member(self) -> None:
        assert plan_for(workload(retention_s=60, consumers=500), MEASURED).partitions >= 500

    def test_one_replica_on_one_node_has_nobody_to_wait_for(self) -> None:
        plan = plan_for(workload(rate_per_s=100, replicas=1), MEASURED)
        assert (plan.nodes, plan.partitions) == (1, 1)
        assert plan.latency_quiet_ms == MEASURED.latency_ms
        assert plan.utilisation_with_a_node_lost is None

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({"rate_per_s": 1e9, "size_bytes": 1 << 20}, "nodes"),
            ({"rate_per_s": 50_000, "retention_s": 10 * 365 * DAY_S}, "partitions"),
            ({"replicas": 0}, "--replicas"),
            ({"rate_per_s": 0}, "--rate"),
        ],
    )
    def test_what_cannot_be_is_refused(self, given: dict[str, float], told: str) -> None:
        with pytest.raises(InvalidSetting, match=told):
            plan_for(workload(**given), MEASURED)


@given(
    rate=st.floats(1, 20_000),
    size=st.integers(1, 5_000),
    replicas=st.integers(1, 5),
    subscriptions=st.integers(0, 5),
    peak=st.floats(1, 5),
    disk=st.none() | st.integers(10**12, 10**14),
)
def test_every_resource_is_within_its_bound(
    rate: float, size: int, replicas: int, subscriptions: int, peak: float, disk: int | None
) -> None:
    asked = workload(
        rate_per_s=rate,
        size_bytes=size,
        replicas=replicas,
        subscriptions=subscriptions,
        peak=peak,
        retention_s=DAY_S,
        node_disk_bytes=disk,
    )
    plan = plan_for(asked, MEASURED)
    assert plan.nodes >= replicas
    assert plan.partitions % plan.nodes == 0
    for need in plan.needs:
        assert need.utilisation <= need.bound + 1e-9
    more = plan_for(msgspec.structs.replace(asked, peak=peak * 2), MEASURED)
    assert more.nodes >= plan.nodes


class TestMeasurement:
    @pytest.mark.parametrize(
        ("size", "cost_us"), [(1, 2.5), (100, 2.5), (550, 6.25), (1000, 10.0), (20_000, 200.0)]
    )
    def test_a_message_costs_what_lies_between_the_sizes_measured(
        self, size: int, cost_us: float
    ) -> None:
        cost_s = MEASURED.seconds_per_message("publish_per_s", size)
        assert cost_s * 1e6 == pytest.approx(cost_us)

    def test_overhead_does_not_grow_beyond_what_was_measured(self) -> None:
        assert MEASURED.stored_bytes(100_000) == pytest.approx(100_020)

    def test_it_is_the_same_after_saving(self, tmp_path: Path) -> None:
        save(MEASURED, str(tmp_path / "m.json"))
        assert load(str(tmp_path / "m.json")) == MEASURED
        assert [path.name for path in tmp_path.iterdir()] == ["m.json"]

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"version": 2}, "version 2"),
            ({"points": []}, "points"),
            ({"points": [msgspec.to_builtins(MEASURED.points[0])] * 2}, "order"),
            ({"send_per_s": 0}, "send_per_s"),
            ({"latency_ms": {"p50": 1}}, "p99"),
            ({"more": 1}, "more"),
        ],
    )
    def test_a_file_with_a_mistake_is_refused(
        self, tmp_path: Path, change: dict[str, object], told: str
    ) -> None:
        path = tmp_path / "m.json"
        path.write_text(json.dumps({**msgspec.to_builtins(MEASURED), **change}))
        with pytest.raises(InvalidSetting, match=told):
            load(str(path))

    def test_where_there_is_none_it_says_how_to_make_one(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidSetting, match="quiver bench --save"):
            load(str(tmp_path / "none.json"))


class TestSample:
    def test_messages_that_are_alike_take_less_when_compressed(self, tmp_path: Path) -> None:
        path = tmp_path / "sample.jsonl"
        lines = [f'{{"user": {1000 + n}, "action": "click on a button"}}\n' for n in range(2000)]
        path.write_text("".join(lines))
        stored = measure_sample(str(path), batch=500)
        assert stored.messages == 2000
        assert stored.mean_bytes == len(lines[0]) - 1
        assert stored.packed(Compression.ZSTD) < 0.5 < 1 < stored.packed(Compression.NONE)

    def test_small_batches_cost_more(self, tmp_path: Path) -> None:
        path = tmp_path / "sample"
        path.write_text("a message\n" * 100)
        one, many = (measure_sample(str(path), batch) for batch in (1, 100))
        assert one.stored_bytes["none"] > many.stored_bytes["none"]

    def test_a_sample_without_messages_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "empty").write_text("\n \n")
        with pytest.raises(InvalidSetting, match="is empty: a sample has one message on each line"):
            measure_sample(str(tmp_path / "empty"), 10)


@pytest.mark.parametrize(
    ("text", "rate"), [("100000", 1e5), ("5000/s", 5000), ("1e9/d", 1e9 / DAY_S), ("6/m", 0.1)]
)
def test_a_rate_is_written_as_people_do(text: str, rate: float) -> None:
    assert rate_per_s(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "many", "-5", "5/y", "1e9/d/d", "nan"])
def test_what_is_not_a_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="not a rate"):
        rate_per_s(text)
