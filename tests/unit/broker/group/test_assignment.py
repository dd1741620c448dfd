"""The assignment of partitions to members: complete, balanced, sticky, the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.broker.group.assignment import assign
from quiver.broker.group.values import Interests, MemberId, PartitionKey
from tests.unit.log.small_logs import effort

TOPICS = ("orders", "refunds", "visits")


class Case(NamedTuple):
    partitions: list[PartitionKey]
    members: dict[MemberId, Interests]
    current: dict[PartitionKey, MemberId]

    def assigned(self) -> Mapping[PartitionKey, MemberId]:
        return assign(self.partitions, self.members, self.current)

    def kept(self, assignment: Mapping[PartitionKey, MemberId]) -> int:
        return sum(self.current.get(place) == member for place, member in assignment.items())


alike: st.SearchStrategy[Interests] = st.none()
wishes: st.SearchStrategy[Interests] = alike | st.frozensets(st.sampled_from(TOPICS))


@st.composite
def cases(
    draw: st.DrawFn,
    interests: st.SearchStrategy[Interests],
    *,
    partitions_max: int = 24,
    members_min: int = 0,
    members_max: int = 7,
) -> Case:
    """The current assignment may be of any shape, and name members and partitions that are gone."""
    count = draw(st.integers(0, partitions_max))
    partitions = [PartitionKey(TOPICS[number % 3], number) for number in range(count)]
    ids = [MemberId(f"m{number}") for number in range(members_max + 1)]
    wanted = draw(st.lists(interests, min_size=members_min, max_size=members_max))
    owners = draw(st.lists(st.sampled_from(ids) | st.none(), max_size=len(partitions) + 1))
    places = [*partitions, PartitionKey("gone", 0)]
    return Case(
        partitions,
        dict(zip(ids, wanted, strict=False)),
        {place: owner for place, owner in zip(places, owners, strict=False) if owner is not None},
    )


searching = settings(max_examples=100 * effort(), deadline=None)


@searching
@given(cases(wishes))
def test_each_partition_goes_to_one_interested_member_if_there_is_any(case: Case) -> None:
    wanted = {
        place
        for place in case.partitions
        for wish in case.members.values()
        if wish is None or place.topic in wish
    }
    assignment = case.assigned()
    assert set(assignment) == wanted
    for place, member in assignment.items():
        wish = case.members[member]
        assert wish is None or place.topic in wish


@searching
@given(cases(wishes))
def test_members_with_equal_interests_differ_by_one_partition_at_most(case: Case) -> None:
    counts = Counter(case.assigned().values())
    for wish in case.members.values():
        alike = [counts[member] for member, other in case.members.items() if other == wish]
        assert max(alike) - min(alike) <= 1


@searching
@given(cases(alike, members_min=1))
def test_as_many_partitions_stay_as_balance_allows(case: Case) -> None:
    share, extra = divmod(len(case.partitions), len(case.members))
    quotas = [share + 1] * extra + [share] * (len(case.members) - extra)
    had = Counter(member for place, member in case.current.items() if place in case.partitions)
    counts = sorted((had[member] for member in case.members), reverse=True)
    most = sum(min(count, quota) for count, quota in zip(counts, quotas, strict=True))
    assert case.kept(case.assigned()) == most


@searching
@given(cases(alike, partitions_max=6, members_min=1, members_max=3))
def test_no_other_balanced_assignment_keeps_more(case: Case) -> None:
    most = 0
    for owners in product(case.members, repeat=len(case.partitions)):
        counts = [owners.count(member) for member in case.members]
        if max(counts) - min(counts) <= 1:
            most = max(most, case.kept(dict(zip(case.partitions, owners, strict=True))))
    assert case.kept(case.assigned()) == most


@searching
@given(cases(wishes), st.integers(0, 1 << 16))
def test_the_order_of_what_is_handed_in_does_not_matter(case: Case, seed: int) -> None:
    random = Random(seed)
    shuffled = Case(
        random.sample(case.partitions, len(case.partitions)),
        dict(random.sample(list(case.members.items()), len(case.members))),
        dict(random.sample(list(case.current.items()), len(case.current))),
    )
    assert shuffled.assigned() == case.assigned()


@searching
@given(cases(wishes))
def test_an_assignment_that_is_made_stays_as_it_is(case: Case) -> None:
    assignment = case.assigned()
    assert assign(case.partitions, case.members, assignment) == assignment


def test_what_few_can_read_is_shared_out_before_what_many_can() -> None:
    both = [PartitionKey(topic, index) for topic in ("orders", "refunds") for index in range(4)]
    ada, bob = MemberId("ada"), MemberId("bob")
    assignment = assign(both, {ada: None, bob: frozenset({"orders"})}, {})
    assert Counter(assignment.values()) == {ada: 4, bob: 4}
