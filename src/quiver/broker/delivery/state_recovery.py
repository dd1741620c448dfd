"""Opens the delivery state of a partition: from its newest snapshot, then from the records since.

State never speaks of messages that are not there: what a crash took from the data is forgotten.
"""

from __future__ import annotations

from msgspec.structs import replace

from quiver.broker.delivery.history import History
from quiver.broker.delivery.look_ahead import LookAhead
from quiver.broker.delivery.machine.arrival import arrival_of
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.records import AnyRecord, Sought, decode_entries
from quiver.broker.delivery.machine.snapshot import decode_snapshot
from quiver.broker.delivery.saved_state import SavedState
from quiver.broker.delivery.snapshots import SNAPSHOT_ENTRY
from quiver.log.log import Log, LogReader
from quiver.model.ids import Offset

_READ_BYTES = 4 << 20


class StateRecovery:
    """``restore``, then ``replay``. Each says whether the state spoke of messages that are lost."""

    def __init__(self, data: LogReader, log: Log, history: History, look_ahead: LookAhead) -> None:
        self._data = data
        self._log = log
        self._history = history
        self._look_ahead = look_ahead
        self._offset = log.start_offset
        self.replayed_bytes = 0
        """Of the records that no snapshot has."""

    async def restore(self, machines: dict[int, DeliveryMachine], saved: SavedState | None) -> bool:
        """Begin as a snapshot says. Without one that fits the log, the records say everything."""
        if saved is None or not self._log.start_offset <= saved.offset <= self._log.next_offset:
            saved = SavedState(self._log.start_offset, {})
        self._offset = saved.offset
        unknown = dict.fromkeys(machines, saved.offset)
        self._history.sought = unknown if saved.sought is None else saved.sought
        is_short = False
        for number, machine in machines.items():
            snapshot = decode_snapshot(saved.machines.get(number, b""))
            if snapshot is not None:
                machine.state.restore(snapshot)
            if machine.state.observed_to > self._data.next_offset:
                machine.state.forget_from(self._data.next_offset)
                is_short = True
            await learn_keys(machine, self._data)
        return is_short

    async def replay(self, machines: dict[int, DeliveryMachine]) -> bool:
        """Apply the records since."""
        is_short, end = False, self._data.next_offset
        while self._offset < self._log.next_offset:
            for entry in await self._log.read(self._offset, _READ_BYTES):
                self._offset = entry.next_offset
                if entry.columns == SNAPSHOT_ENTRY:
                    continue
                self.replayed_bytes += entry.size()
                changes = decode_entries(bytes(entry.body))
                self._history.note(changes, self._offset)
                for change in changes:
                    machine = machines.get(change.subscription)
                    for record in change.records if machine is not None else ():
                        assert machine is not None
                        is_short |= await self._apply(machine, record, end)
        return is_short

    async def _apply(self, machine: DeliveryMachine, record: AnyRecord, end: Offset) -> bool:
        """Apply what a record says of messages before ``end``; whether it speaks of others too."""
        if isinstance(record, Sought):
            machine.state.apply(replace(record, start=min(record.start, end)))
            return record.start > end
        offsets = record.bitmap
        is_short = bool(offsets) and offsets.max() >= end
        if is_short:
            offsets.remove_range(end, offsets.max() + 1)
            record = replace(record, offsets=offsets.serialize())
        if not offsets:
            return is_short
        while machine.state.observed_to <= offsets.max():
            if machine.state.observed_to < self._data.start_offset:
                machine.skip_to(self._data.start_offset)
                continue
            await self._look_ahead.observe_more(machine)
        machine.state.apply(record)
        return is_short


async def learn_keys(machine: DeliveryMachine, data: LogReader) -> None:
    """Keys are not in a snapshot; they are read from the messages that are still pending."""
    while machine.state.keys_from is not None:
        if machine.state.keys_from < data.start_offset:
            machine.skip_to(data.start_offset)
            continue
        for entry in await data.read(machine.state.keys_from, _READ_BYTES):
            if machine.state.keys_from is not None:
                machine.state.learn(arrival_of(entry, with_keys=True))
