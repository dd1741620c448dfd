"""When alerts fire and clear, on virtual time."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.broker.alerts.alert import Alert
from quiver.broker.alerts.machine import FIRING_MAX, AlertMachine
from quiver.broker.alerts.readings import GAP_NEW_US
from quiver.config.alert_rule import DEFAULT_RULES, AlertRule, Watch, rules_in_force
from quiver.metrics.sample import (
    MirrorSample,
    NodeSample,
    SourceSample,
    SubscriptionSample,
    TopicSample,
)


def queue(name: str = "emails", **figures: float | bool | None) -> SubscriptionSample:
    return SubscriptionSample(name=name, **figures)  # type: ignore[arg-type]


def sample(*subscriptions: SubscriptionSample, **rest: object) -> NodeSample:
    rest.setdefault("topics", [])
    return NodeSample(time_us=1, subscriptions=list(subscriptions), **rest)  # type: ignore[arg-type]


def rule(watch: Watch, limit: float, **rest: object) -> AlertRule:
    return AlertRule(name="r", watch=watch, limit=limit, **rest)  # type: ignore[arg-type]


def told(changes: list[Alert]) -> list[tuple[str, str]]:
    return [(alert.subject, alert.state) for alert in changes]


class TestFiring:
    def test_it_fires_when_it_has_lasted_and_once(self) -> None:
        machine = AlertMachine((rule("depth", 10, for_s=5),))
        deep = sample(queue(ready=11))
        assert machine.evaluate(deep, 0) == []
        assert machine.evaluate(deep, 4.9) == []
        assert told(machine.evaluate(deep, 5)) == [("emails", "firing")]
        assert machine.evaluate(deep, 6) == []
        assert [alert.value for alert in machine.firing] == [11]

    def test_what_was_over_in_between_begins_anew(self) -> None:
        machine = AlertMachine((rule("depth", 10, for_s=5),))
        machine.evaluate(sample(queue(ready=11)), 0)
        machine.evaluate(sample(queue(ready=10)), 4)
        assert machine.evaluate(sample(queue(ready=11)), 6) == []
        assert told(machine.evaluate(sample(queue(ready=11)), 11)) == [("emails", "firing")]

    def test_each_subject_has_an_alert_of_its_own(self) -> None:
        machine = AlertMachine((rule("depth", 10),))
        changes = machine.evaluate(sample(queue("a", ready=11), queue("b", leased=12)), 0)
        assert told(changes) == [("a", "firing"), ("b", "firing")]

    def test_there_are_only_so_many_at_a_time(self) -> None:
        machine = AlertMachine((rule("depth", 0), rule("oldest_age", 0)))
        many = [queue(f"q{number}", ready=1, oldest_age_s=1) for number in range(FIRING_MAX)]
        assert len(machine.evaluate(sample(*many), 0)) == FIRING_MAX
        assert machine.evaluate(sample(*many), 1) == []
        following = machine.evaluate(sample(*many[1:]), 2)
        assert told(following) == [("q0", "cleared"), ("q1", "firing")]

    def test_the_worst_come_first(self) -> None:
        rules = (
            rule("depth", 10),
            AlertRule(name="d", watch="disk_low", limit=5, severity="critical"),
        )
        machine = AlertMachine(rules)
        machine.evaluate(sample(queue(ready=11), free_bytes=1), 0)
        assert [alert.severity for alert in machine.firing] == ["critical", "warning"]
        assert machine.firing_by_severity == {"critical": 1, "warning": 1}


class TestClearing:
    def test_it_clears_below_the_lower_limit_for_long_enough(self) -> None:
        machine = AlertMachine((rule("depth", 10, clear_for_s=5),))
        machine.evaluate(sample(queue(ready=11)), 0)
        for now, depth in ((1, 9), (2, 8), (6.9, 7)):
            assert machine.evaluate(sample(queue(ready=depth)), now) == []
        assert told(machine.evaluate(sample(queue(ready=7)), 7)) == [("emails", "cleared")]
        assert machine.firing == []

    def test_between_the_limits_it_goes_on(self) -> None:
        machine = AlertMachine((rule("depth", 10),))
        machine.evaluate(sample(queue(ready=11)), 0)
        for now in range(1, 100):
            assert machine.evaluate(sample(queue(ready=9 if now % 2 else 11)), now) == []

    def test_what_is_deleted_clears(self) -> None:
        machine = AlertMachine((rule("depth", 10),))
        machine.evaluate(sample(queue(ready=11)), 0)
        assert told(machine.evaluate(sample(), 1)) == [("emails", "cleared")]

    @given(
        st.lists(st.tuples(st.integers(0, 20), st.floats(0, 3)), max_size=60),
        st.integers(0, 4),
        st.integers(0, 4),
    )
    def test_firing_and_clearing_alternate(
        self, steps: list[tuple[int, float]], for_s: int, clear_for_s: int
    ) -> None:
        machine = AlertMachine((rule("depth", 10, for_s=for_s, clear_for_s=clear_for_s),))
        now, states = 0.0, ["cleared"]
        for depth, pause in steps:
            now += pause
            states += [one.state for one in machine.evaluate(sample(queue(ready=depth)), now)]
            assert states[-1] == ("firing" if machine.firing else "cleared")
        assert all(one != other for one, other in pairwise(states))


class TestWatches:
    def test_a_pattern_says_whom_it_is_about(self) -> None:
        machine = AlertMachine((rule("depth", 0, on="orders.*"),))
        changes = machine.evaluate(sample(queue("orders.eu", ready=1), queue("emails", ready=1)), 0)
        assert told(changes) == [("orders.eu", "firing")]

    def test_queues_of_dead_letters_are_meant_only_when_they_are_named(self) -> None:
        letters = sample(queue("emails.dlq", ready=1, holds_dead_letters=True))
        assert AlertMachine((rule("depth", 0),)).evaluate(letters, 0) == []
        named = AlertMachine((rule("depth", 0, on="*.dlq"),))
        assert told(named.evaluate(letters, 0)) == [("emails.dlq", "firing")]

    def test_the_oldest_age(self) -> None:
        machine = AlertMachine((rule("oldest_age", 60),))
        assert machine.evaluate(sample(queue(ready=1, oldest_age_s=60)), 0) == []
        assert machine.evaluate(sample(queue(ready=1, oldest_age_s=61)), 1)

    def test_lag_that_grows_all_the_time(self) -> None:
        machine = AlertMachine((rule("lag_growing", 60),))
        fired = [machine.evaluate(sample(queue(ready=10 + now)), now) for now in range(63)]
        assert [now for now, changes in enumerate(fired) if changes] == [62]

    @pytest.mark.parametrize(
        "lag", [lambda now: 10, lambda now: 10 + now % 30, lambda now: 100 - now]
    )
    def test_lag_that_does_not(self, lag: object) -> None:
        machine = AlertMachine((rule("lag_growing", 60),))
        for now in range(100):
            assert machine.evaluate(sample(queue(ready=lag(now))), now) == []  # type: ignore[operator]

    def test_lag_that_shrinks_clears(self) -> None:
        machine = AlertMachine((rule("lag_growing", 10, clear_ratio=0.01),))
        for now in range(20):
            machine.evaluate(sample(queue(ready=10 + now)), now)
        assert machine.firing
        assert told(machine.evaluate(sample(queue(ready=5)), 21)) == [("emails", "cleared")]

    def test_dead_letters_fire_until_they_are_handled(self) -> None:
        machine = AlertMachine((rule("dead_letters", 0),))
        assert machine.evaluate(sample(queue(dead=0)), 0) == []
        assert told(machine.evaluate(sample(queue(dead=6)), 1)) == [("emails", "firing")]
        for now in (2, 400, 100_000):
            assert machine.evaluate(sample(queue(dead=1)), now) == []
        assert told(machine.evaluate(sample(queue(dead=0)), 100_001)) == [("emails", "cleared")]

    def test_dead_letters_from_before_a_restart_go_on_firing_and_are_not_reported_again(
        self,
    ) -> None:
        machine = AlertMachine((rule("dead_letters", 0),))
        assert machine.evaluate(sample(queue(dead=None)), 0) == []  # not opened yet
        assert machine.evaluate(sample(queue(dead=3, recovered_letters_us=7)), 1) == []
        (alert,) = machine.firing
        assert (alert.subject, alert.value, alert.since_us) == ("emails", 3, 7)
        assert machine.evaluate(sample(queue(dead=4, recovered_letters_us=7)), 2) == []
        assert told(machine.evaluate(sample(queue(dead=0)), 3)) == [("emails", "cleared")]
        again = sample(queue(dead=2, recovered_letters_us=7))
        assert told(machine.evaluate(again, 4)) == [("emails", "firing")]  # these came back

    def test_dead_letters_that_cannot_be_stored_fire(self) -> None:
        machine = AlertMachine((rule("dead_letters", 0),))
        stuck = sample(queue(dead=None, dead_letter_pending=1))
        assert told(machine.evaluate(stuck, 0)) == [("emails", "firing")]

    def test_dead_letters_that_arrive_and_stop_arriving(self) -> None:
        machine = AlertMachine((rule("dead_letter_arrivals", 0),))
        assert machine.evaluate(sample(queue(dead=5)), 0) == []  # they were there before
        arrived = sample(queue(dead=6, dead_lettered=1))
        assert told(machine.evaluate(arrived, 1)) == [("emails", "firing")]
        later = [machine.evaluate(arrived, now) for now in range(2, 320)]
        (cleared,) = [now for now, changes in enumerate(later, 2) if changes]
        assert 301 <= cleared <= 311  # though nobody has handled them

    def test_the_share_of_requests_that_fail(self) -> None:
        machine = AlertMachine((rule("error_rate", 0.1),))
        machine.evaluate(sample(requests=1000, errors=900), 0)  # from before
        assert machine.evaluate(sample(requests=1100, errors=910), 1) == []
        assert told(machine.evaluate(sample(requests=1100, errors=912), 2)) == [("", "firing")]
        assert told(machine.evaluate(sample(requests=2000, errors=912), 70)) == [("", "cleared")]

    def test_of_few_requests_a_share_says_nothing(self) -> None:
        machine = AlertMachine((rule("error_rate", 0.1),))
        machine.evaluate(sample(), 0)
        assert machine.evaluate(sample(requests=19, errors=19), 1) == []

    def test_a_disk_that_fills_up(self) -> None:
        machine = AlertMachine((rule("disk_low", 100),))
        assert machine.evaluate(sample(free_bytes=100), 0) == []
        assert told(machine.evaluate(sample(free_bytes=99), 1)) == [("", "firing")]
        assert machine.evaluate(sample(free_bytes=124), 2) == []
        assert told(machine.evaluate(sample(free_bytes=125), 3)) == [("", "cleared")]

    def test_before_the_disk_was_looked_at_nothing_is_known_of_it(self) -> None:
        assert AlertMachine((rule("disk_low", 100),)).evaluate(sample(), 0) == []

    def test_replicas_and_nodes_that_are_missing(self) -> None:
        machine = AlertMachine((rule("under_replicated", 0), rule("node_down", 0)))
        topics = [TopicSample(name="orders", missing=1), TopicSample(name="lone")]
        changes = machine.evaluate(sample(topics=topics, nodes_down=["n2"]), 0)
        assert told(changes) == [("orders", "firing"), ("n2", "firing")]

    def test_a_transaction_that_holds_readers_back(self) -> None:
        machine = AlertMachine((rule("transaction_age", 120),))
        topics = [TopicSample(name="orders", transaction_age_s=119), TopicSample(name="lone")]
        assert machine.evaluate(sample(topics=topics), 0) == []
        topics = [TopicSample(name="orders", transaction_age_s=121), TopicSample(name="lone")]
        assert told(machine.evaluate(sample(topics=topics), 1)) == [("orders", "firing")]
        assert told(machine.evaluate(sample(topics=[TopicSample(name="orders")]), 2)) == [
            ("orders", "cleared")
        ]

    def test_a_mirror_that_is_behind_broken_or_has_a_gap(self) -> None:
        rules = rule("mirror_lag", 60), rule("mirror_gaps", 0), rule("mirror_broken", 0)
        for one, value in zip(
            rules, ({"lag_s": 61.0}, {"gaps": [(1, 5)]}, {"broken": 1}), strict=True
        ):
            machine = AlertMachine((one,))
            well = [MirrorSample(mirror="eu", topic="orders")]
            assert machine.evaluate(sample(mirrors=well), 0) == []
            ill = [MirrorSample(mirror="eu", topic="orders", **value)]  # type: ignore[arg-type]
            assert told(machine.evaluate(sample(mirrors=ill), 1)) == [("orders", "firing")]

    def test_a_gap_of_a_mirror_goes_on_where_it_was_not_found_and_is_told_by_whoever_found_it(
        self,
    ) -> None:
        found_us = 1_000 * 1_000_000
        copied = [MirrorSample(mirror="eu", topic="orders", gaps=[(found_us, 5)])]
        sampled = msgspec.structs.replace(sample(mirrors=copied), time_us=found_us + GAP_NEW_US + 1)
        machine = AlertMachine((rule("mirror_gaps", 0),))
        assert machine.evaluate(sampled, 0) == []
        assert [(one.subject, one.value, one.since_us) for one in machine.firing] == [
            ("orders", 5, found_us)
        ]
        later = msgspec.structs.replace(sampled, mirrors=[])
        assert told(machine.evaluate(later, 1)) == [("orders", "cleared")]

    @pytest.mark.parametrize(
        ("passed_s", "mirrored", "changes"),
        [
            (60, {"orders"}, []),  # another node copies it now, and tells of it
            (60, set(), [("orders", "cleared")]),  # it was promoted or deleted
            (3601, {"orders"}, [("orders", "cleared")]),
        ],
    )
    def test_a_gap_that_moves_with_its_partition_is_not_said_to_be_over(
        self, passed_s: int, mirrored: set[str], changes: list[tuple[str, str]]
    ) -> None:
        found_us = 1_000 * 1_000_000
        gaps = [(found_us, 5)]
        machine = AlertMachine((rule("mirror_gaps", 0),))
        began = sample(mirrors=[MirrorSample(mirror="eu", topic="orders", gaps=gaps)])
        began = msgspec.structs.replace(began, time_us=found_us)
        assert told(machine.evaluate(began, 0)) == [("orders", "firing")]
        later = sample(mirrors=[], mirrored=frozenset(mirrored))
        later = msgspec.structs.replace(later, time_us=found_us + passed_s * 1_000_000)
        assert told(machine.evaluate(later, passed_s)) == changes
        assert machine.firing == []

    def test_a_gap_that_was_found_just_before_a_mirror_moved_is_told_again(self) -> None:
        found_us = 1_000 * 1_000_000
        copied = [MirrorSample(mirror="eu", topic="orders", gaps=[(1_000, 7), (found_us, 5)])]
        sampled = msgspec.structs.replace(sample(mirrors=copied), time_us=found_us + 1_000_000)
        machine = AlertMachine((rule("mirror_gaps", 0),))
        assert told(machine.evaluate(sampled, 0)) == [("orders", "firing")]

    def test_a_gap_that_waits_for_its_rule_is_told_however_long_that_takes(self) -> None:
        found_us = 1_000 * 1_000_000
        copied = [MirrorSample(mirror="eu", topic="orders", gaps=[(found_us, 5)])]
        machine = AlertMachine((rule("mirror_gaps", 0, for_s=90),))
        for now in (0, 89):
            sampled = sample(mirrors=copied)
            sampled = msgspec.structs.replace(sampled, time_us=found_us + now * 1_000_000)
            assert machine.evaluate(sampled, now) == []
        sampled = msgspec.structs.replace(sampled, time_us=found_us + 90_000_000)
        assert told(machine.evaluate(sampled, 90)) == [("orders", "firing")]

    def test_a_mirror_whose_source_refuses_it(self) -> None:
        machine = AlertMachine((rule("mirror_broken", 0),))
        assert machine.evaluate(sample(sources=[SourceSample(mirror="eu")]), 0) == []
        refusing = [SourceSample(mirror="eu", is_broken=True)]
        assert told(machine.evaluate(sample(sources=refusing), 1)) == [("eu", "firing")]
        assert told(machine.evaluate(sample(sources=[]), 2)) == [("eu", "cleared")]


class TestRules:
    def test_the_rules_from_the_start_are_quiet_on_a_healthy_node(self) -> None:
        machine = AlertMachine(DEFAULT_RULES)
        healthy = sample(queue(ready=100, oldest_age_s=2), free_bytes=1 << 40, requests=1e6)
        assert [machine.evaluate(healthy, now) for now in range(0, 3600, 30)] == [[]] * 120

    def test_every_watch_has_a_rule_from_the_start(self) -> None:
        assert len({one.watch for one in DEFAULT_RULES}) == len(DEFAULT_RULES) == 14

    def test_a_rule_of_the_same_name_takes_the_place_of_one_from_the_start(self) -> None:
        mine = AlertRule(name="queue-deep", watch="depth", limit=5)
        rules = rules_in_force((mine,), defaults=True)
        assert [one for one in rules if one.name == "queue-deep"] == [mine]
        assert len(rules) == len(DEFAULT_RULES)
        assert rules_in_force((mine,), defaults=False) == (mine,)
