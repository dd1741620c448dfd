"""How subscriptions learn of the messages of a partition before they deliver them.

One that follows the tail is told of each batch as it is published. One that is behind learns from the
indexes beside the segments, a whole segment at a time, so that it knows every priority before it
delivers anything. Only where keys, tenants or a filter decide are the bodies read. What a subscription
knows in advance is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache

import msgspec
import pyarrow as pa

from quiver import arrow_compute as pc
from quiver.broker.delivery.machine.arrival import IndexedArrival, arrival_of
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.offset_sets import Numbers
from quiver.log.log import LogReader
from quiver.model.batch import StoredBatch
from quiver.model.delivery_columns import is_targeted
from quiver.model.envelope import is_hidden
from quiver.model.filter import Filter, parse_filter
from quiver.model.ids import Offset
from quiver.model.subscription import Ordering

_READ_BYTES = 4 << 20
_CATCH_UP_BYTES = 1 << 20
"""So little that it is still at hand when the messages are delivered."""
_PENDING_MAX = 1_000_000
"""How many pending messages a subscription knows in advance if it needs their keys or tenants."""
_KNOWN_BYTES_MAX = 64 << 20
"""How much memory what it knows in advance may take if it needs neither."""
_RANKED_BYTES = 3
_TIMED_BYTES = 24
"""About what a message takes whose priority is not the default, and one that has a time."""
_SEGMENTS_AT_ONCE = 64
"""Of how many segments' indexes a subscription that is behind learns before it delivers."""
_BODIES_AT_ONCE = 32 << 20
"""How much it reads before it delivers if it needs the bodies to know which message goes first."""

_FILTER_S_MAX = 0.005
"""A filter that takes longer than this for a batch is evaluated in a thread."""


class LookAhead:
    """Of one partition, for all its subscriptions.

    ``pass_over`` is called for a subscription that has not learnt of messages that are deleted by now.
    """

    def __init__(self, data: LogReader, pass_over: Callable[[DeliveryMachine], None]) -> None:
        self._data = data
        self._pass_over = pass_over
        self._plain = (Offset(0), Offset(0))
        """From where to where no message has a priority."""

    def follow(self, machine: DeliveryMachine) -> None:
        """Tell a subscription that follows the tail of what was published; touches no disk.

        One that has not learnt of messages that are deleted by now passes over them when it catches up.
        """
        data = self._data
        while data.start_offset <= machine.state.observed_to < data.next_offset and _has_room(
            machine
        ):
            entries = data.read_tail(machine.state.observed_to, _READ_BYTES)
            if not entries or not _observe(machine, entries):
                break

    def is_behind(self, machine: DeliveryMachine) -> bool:
        """Whether there are messages that a subscription may learn of before it delivers others."""
        return (
            machine.state.observed_to < self._data.next_offset
            and machine.view.waiting_count < _PENDING_MAX
        )

    async def catch_up(self, machine: DeliveryMachine, wanted: int) -> None:
        """Let a subscription that is behind learn of enough messages to deliver the right ones.

        Where priorities count, a message that came late may be the one that goes first. What is too
        much to learn at once is left to the next call.
        """
        effort_left = 1.0
        while self.is_behind(machine):
            if machine.view.ready_count >= wanted and (
                effort_left <= 0 or not await self._may_be_overtaken(machine)
            ):
                return
            effort_left -= await self.observe_more(machine, _CATCH_UP_BYTES)

    async def catch_up_to(self, machine: DeliveryMachine, end: Offset) -> None:
        """Let a subscription learn of all messages below ``end``."""
        while machine.state.observed_to < min(end, self._data.next_offset):
            await self.observe_more(machine)
            await asyncio.sleep(0)  # others have their turn

    async def observe_more(self, machine: DeliveryMachine, bytes_max: int = _READ_BYTES) -> float:
        """Let a subscription learn of what comes next: from an index, or if need be from bodies.

        It returns which part that was of the effort to be made before a delivery.
        """
        state = machine.state
        if state.observed_to < self._data.start_offset:
            self._pass_over(machine)
        if _needs_bodies(machine):
            await _observe_in_turns(machine, await self._data.read(state.observed_to, bytes_max))
            return bytes_max / _BODIES_AT_ONCE
        span = await self._data.delivery_span(state.observed_to)
        if span.base_offset <= state.observed_to < span.next_offset:
            state.observe(IndexedArrival(span, state.name))
        return 1 / _SEGMENTS_AT_ONCE if span.is_indexed else 1.0

    async def _may_be_overtaken(self, machine: DeliveryMachine) -> bool:
        """Whether what is ready may have to wait for a message that is not known yet."""
        state = machine.state
        if state.settings.ordering is not Ordering.NONE or not _has_room(machine):
            return False
        if not _needs_bodies(machine) or state.ready.priorities:
            return True
        return await self._has_priorities_from(state.observed_to)

    async def _has_priorities_from(self, offset: Offset) -> bool:
        """Whether a message from ``offset`` on has a priority, as far as a look at indexes shows."""
        begin, end = self._plain
        if begin <= offset <= end:
            offset = end
        else:
            begin = offset
        for _ in range(_SEGMENTS_AT_ONCE):
            if not self._data.start_offset <= offset < self._data.next_offset:
                break
            span = await self._data.delivery_span(offset)
            if span.priorities:
                return True
            offset = span.next_offset
            self._plain = (begin, offset)
        return False


def _needs_bodies(machine: DeliveryMachine) -> bool:
    """Whether only the bodies of messages tell what a subscription has to know of them."""
    settings = machine.state.settings
    return settings.ordering is Ordering.KEY or bool(settings.filter or settings.fairness)


def _has_room(machine: DeliveryMachine) -> bool:
    """Whether a subscription may know of more messages in advance."""
    if machine.state.wants_keys or machine.state.settings.fairness:
        return machine.view.pending_count < _PENDING_MAX
    return _known_bytes(machine) < _KNOWN_BYTES_MAX


def _known_bytes(machine: DeliveryMachine) -> int:
    """About how much memory it takes to know what is pending."""
    state = machine.state
    ranked = sum(map(len, state.ready.priorities.values()))
    timed = len(state.delayed) + len(state.expiring)
    return machine.view.pending_count // 4 + ranked * _RANKED_BYTES + timed * _TIMED_BYTES


def _observe(machine: DeliveryMachine, entries: list[StoredBatch]) -> bool:
    """Let a subscription learn of the entries; ``False`` once its filter takes too long for the loop."""
    for entry in entries:
        if not _is_next(machine, entry):
            continue
        if is_hidden(entry):
            machine.state.observe(arrival_of(entry))
        elif is_slow(_filter_of(machine), entry):
            return False
        else:
            _observe_one(machine, entry, _filtered(machine, entry))
    return True


async def _observe_in_turns(machine: DeliveryMachine, entries: list[StoredBatch]) -> None:
    """The same, with a filter that takes long in a thread. If it changes meanwhile, the rest is left."""
    for entry in entries:
        if not _is_next(machine, entry):
            continue
        condition = _filter_of(machine)
        if is_hidden(entry):
            machine.state.observe(arrival_of(entry))
            continue
        if condition is None or not is_slow(condition, entry):
            _observe_one(machine, entry, _filtered(machine, entry))
            continue
        passed = await asyncio.to_thread(condition.mask, entry.record_batch())
        if _filter_of(machine) != condition:
            return
        if _is_next(machine, entry):
            _observe_one(machine, entry, passed)


def _is_next(machine: DeliveryMachine, entry: StoredBatch) -> bool:
    return entry.base_offset <= machine.state.observed_to < entry.next_offset


def _observe_one(machine: DeliveryMachine, entry: StoredBatch, passed: Numbers | None) -> None:
    """``passed`` says which messages pass the filter; ``None``: all."""
    arrival = arrival_of(
        entry, with_keys=machine.state.wants_keys, fairness=machine.state.settings.fairness
    )
    passed = _targeted(machine, entry, passed)
    if passed is not None:
        arrival = msgspec.structs.replace(arrival, passed=passed)
    machine.state.observe(arrival)


def _filter_of(machine: DeliveryMachine) -> Filter | None:
    text = machine.state.settings.filter
    return None if text is None else _parsed(text)


def is_slow(condition: Filter | None, entry: StoredBatch) -> bool:
    """Whether the filter would keep the event loop for too long with these messages."""
    return condition is not None and condition.seconds(entry.record_batch()) > _FILTER_S_MAX


def _filtered(machine: DeliveryMachine, entry: StoredBatch) -> Numbers | None:
    condition = _filter_of(machine)
    return None if condition is None else condition.mask(entry.record_batch())


def _targeted(
    machine: DeliveryMachine, entry: StoredBatch, passed: Numbers | None
) -> Numbers | None:
    """Which of the messages that pass the filter are meant for this subscription; ``None``: all."""
    if is_targeted(entry.columns):
        target = entry.record_batch().column("origin_subscription")
        mine = pc.equal(target, pa.scalar(machine.state.name, pa.string())).fill_null(True)
        meant = mine.to_numpy(zero_copy_only=False)
        passed = meant if passed is None else passed & meant
    return passed


def passes(machine: DeliveryMachine, entry: StoredBatch) -> bool:
    """Whether the one message of an entry is for this subscription."""
    passed = _targeted(machine, entry, _filtered(machine, entry))
    return passed is None or bool(passed.all())


_parsed = lru_cache(1000)(parse_filter)
