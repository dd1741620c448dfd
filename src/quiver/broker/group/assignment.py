"""Assigns partitions to members: balanced, sticky and deterministic.

The shares of members with equal interests differ by at most one partition. If all interests are equal,
no balanced assignment moves fewer partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import groupby, islice

from quiver.broker.group.values import Interests, MemberId, PartitionKey

Assignment = dict[PartitionKey, MemberId]


def assign(
    partitions: Sequence[PartitionKey],
    members: Mapping[MemberId, Interests],
    current: Mapping[PartitionKey, MemberId],
) -> Assignment:
    """Give every partition that some member is interested in to one such member."""
    assignment: Assignment = {}
    loads = dict.fromkeys(members, 0)
    for readers, shared in _by_readers(partitions, members):
        _share_out(shared, readers, current, loads, assignment)
    return assignment


def _by_readers(
    partitions: Sequence[PartitionKey], members: Mapping[MemberId, Interests]
) -> list[tuple[list[MemberId], list[PartitionKey]]]:
    """The partitions grouped by who may read them; those with the fewest readers first."""
    cohorts: dict[Interests, list[MemberId]] = {}
    for member, wish in members.items():
        cohorts.setdefault(wish, []).append(member)
    groups: dict[tuple[Interests, ...], list[PartitionKey]] = {}
    for topic, of_topic in groupby(sorted(partitions), key=lambda partition: partition.topic):
        readers = tuple(wish for wish in cohorts if wish is None or topic in wish)
        groups.setdefault(readers, []).extend(of_topic)
    shares = [
        ([member for wish in readers for member in cohorts[wish]], shared)
        for readers, shared in groups.items()
        if readers
    ]
    return sorted(shares, key=lambda share: (len(share[0]), share[1]))


def _share_out(
    shared: list[PartitionKey],
    readers: list[MemberId],
    current: Mapping[PartitionKey, MemberId],
    loads: dict[MemberId, int],
    assignment: Assignment,
) -> None:
    """Share partitions out among members that may read them all, and count them into the loads."""
    had: dict[MemberId, list[PartitionKey]] = {member: [] for member in readers}
    for partition in shared:
        owner = current.get(partition)
        if owner in had:
            had[owner].append(partition)
    # Deal places to the least loaded, and among those to one who has a partition to put there: so
    # the places left over in the last round go to members who would else have to give one up.
    places = [(loads[member], not had[member], member) for member in readers]
    heapify(places)
    for _ in shared:
        load, _, member = places[0]
        dealt = load + 1 - loads[member]
        heapreplace(places, (load + 1, dealt >= len(had[member]), member))
    quotas = {member: load - loads[member] for load, _, member in places if load > loads[member]}
    for member, quota in quotas.items():
        for partition in had[member][:quota]:
            assignment[partition] = member
    spare = (partition for partition in shared if partition not in assignment)
    for member in sorted(quotas):
        loads[member] += quotas[member]
        for partition in islice(spare, max(0, quotas[member] - len(had[member]))):
            assignment[partition] = member
