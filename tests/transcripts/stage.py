"""One subscription on virtual time, driven by the commands of a transcript.

    subscription visibility=30s max_deliveries=3 backoff=1s ordering=key guarantee=at-most-once
    publish [count=5] [priority=4,9,…] [key=a,-,…] [tenant=a,-,…] [delay=10s,-,…] [expires=1m,-,…]
            [passed=yes,no,…]
    receive [limit=2] [consumer=a] [visibility=5s]
    ack | requeue lease=1 [offsets=0-2,4]      those of the lease, unless told otherwise
    nack lease=1 [offsets=…] [delay=10s] [error=text]
    reject lease=1 [offsets=…] [error=text]
    extend lease=1 [offsets=…] by=30s
    hold lease=1 [offsets=…] transaction=7      acknowledged in a transaction
    commit | abort transaction=7                it has ended
    leave consumer=a                            the consumer is gone
    cancel | give-up offsets=…                  give-up: the messages can no longer be read
    bury [offsets=…]                            they are stored as dead letters
    seek to=3                                   begin again there
    wait 10s                                    then do what is due; with a minus the clock goes back
    state                                       where every message is
    save                                        a snapshot, which later restarts begin with
    restart                                     from the snapshot, or from the very beginning

A column of ``publish`` goes on with its last value; ``-`` is none. Times are shown from the start on.
What a command changes is shown as the records that it adds to the state log.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from quiver.broker.delivery.machine.arrival import Arrival
from quiver.broker.delivery.machine.machine import DeliveryMachine
from quiver.broker.delivery.machine.records import (
    CANCELLED,
    PURGED,
    AnyRecord,
    DeadLettered,
    DeadLetterPending,
    Extended,
    Finished,
    Held,
    Leased,
    Returned,
    Sought,
)
from quiver.broker.delivery.machine.session_view import SessionView
from quiver.broker.delivery.machine.snapshot import decode_snapshot, encode_snapshot
from quiver.model.delivery_columns import NEVER
from quiver.model.ids import Microseconds, Offset
from quiver.model.subscription import Backoff, Guarantee, Ordering, SubscriptionSettings
from quiver.model.transaction import TransactionId
from quiver.model.units import microseconds

DEFAULT_PRIORITY = 4
START = Microseconds(1_000_000_000_000_000)

Options = dict[str, str]


class Stage:
    def __init__(self) -> None:
        self.settings = SubscriptionSettings(topics=["jobs"])
        self.machine = DeliveryMachine(self.settings, Offset(0))
        self.now = START
        self.arrivals: list[Arrival] = []
        self.records: list[AnyRecord] = []
        self.saved: tuple[bytes, int] | None = None
        self.lease_id = 1
        self.given: dict[int, BitMap64] = {}
        self.marks: dict[int, str] = {}
        """What a message is shown with besides its offset."""

    def play(self, line: str) -> str:
        """Do what the line says; what there is to see then."""
        command, *words = shlex.split(line)
        options = dict(word.split("=", 1) if "=" in word else ("", word) for word in words)
        act: Callable[[Options], Iterable[str]] = getattr(self, "do_" + command.replace("-", "_"))
        shown = list(act(options))
        assert not options, f"{command} does not know {', '.join(options)}"
        return "\n".join(shown) or "nothing"

    # ------------------------------------------------------------------ the subscription

    def do_subscription(self, options: Options) -> Iterable[str]:
        chosen: dict[str, Any] = {}
        for name in ("visibility", "ageing"):
            if name in options:
                chosen[name] = options.pop(name)
        if "fairness" in options:
            chosen["fairness"] = options.pop("fairness")
        if "max_deliveries" in options:
            chosen["max_deliveries"] = int(options.pop("max_deliveries"))
        if "backoff" in options:
            chosen["backoff"] = Backoff(min=options.pop("backoff"))
        self.settings = SubscriptionSettings(
            topics=["jobs"],
            ordering=Ordering(options.pop("ordering", "none")),
            guarantee=Guarantee(options.pop("guarantee", "at-least-once")),
            **chosen,
        )
        self.machine = DeliveryMachine(self.settings, Offset(0))
        yield "ok"

    def do_publish(self, options: Options) -> Iterable[str]:
        rows = int(options.pop("count", "1"))
        base = self.machine.state.observed_to
        column = {name: _spread(options.pop(name), rows) for name in list(options)}
        self._mark(base, column)
        arrival = Arrival(
            base_offset=base,
            count=rows,
            time=self.now,
            **{_COLUMNS[name]: self._column(name, values) for name, values in column.items()},
        )
        self.arrivals.append(arrival)
        self.machine.state.observe(arrival)
        yield f"offsets {_ranges(range(base, base + rows))}"

    def _column(self, name: str, values: list[str | None]) -> Any:
        if name == "key":
            return pa.array([value and value.encode() for value in values], pa.binary())
        if name == "tenant":
            tenants = sorted({value for value in values if value is not None})
            return {one: np.flatnonzero(np.array(values) == one) for one in tenants}
        if name in ("delay", "expires"):
            times = [NEVER if one is None else self.now + microseconds(one) for one in values]
            return np.array(times, np.int64)
        if name == "passed":
            return np.array([value == "yes" for value in values])
        return np.array([int(value or DEFAULT_PRIORITY) for value in values], np.int8)

    def _mark(self, base: int, column: dict[str, list[str | None]]) -> None:
        for row, priority in enumerate(column.get("priority", [])):
            if priority is not None and int(priority) != DEFAULT_PRIORITY:
                self.marks[base + row] = f"p{priority}"
        for row, key in enumerate(column.get("key", column.get("tenant", []))):
            if key is not None:
                self.marks[base + row] = " ".join(filter(None, [key, self.marks.get(base + row)]))

    # ------------------------------------------------------------------ consumers

    def do_receive(self, options: Options) -> Iterable[str]:
        visibility = options.pop("visibility", None)
        taken, records = self.machine.take(
            self.now,
            limit=int(options.pop("limit", "10")),
            lease_id=self.lease_id,
            consumer=options.pop("consumer", ""),
            visibility_us=None if visibility is None else microseconds(visibility),
        )
        self.records += records
        for record in records:
            if taken is None or record.bitmap != taken.offsets:
                yield self._shown(record)
        if taken is not None:
            self.lease_id += 1
            self.given[taken.lease_id] = taken.offsets
            counts = {place: number for number, part in taken.deliveries.items() for place in part}
            what = ", ".join(self._delivered(place, counts[place]) for place in taken.offsets)
            yield f"lease {taken.lease_id} until {_clock(taken.deadline)}: {what}"

    def _delivered(self, offset: int, deliveries: int) -> str:
        again = f"delivery {deliveries}" if deliveries > 1 else ""
        marks = ", ".join(filter(None, [self.marks.get(offset, ""), again]))
        return f"{offset} ({marks})" if marks else f"{offset}"

    # ------------------------------------------------------------------ consumers with a session

    def do_push(self, options: Options) -> Iterable[str]:
        consumer = options.pop("consumer", "")
        taken, records = self.machine.reserve(
            self.now,
            limit=int(options.pop("limit", "10")),
            lease_id=self.lease_id,
            consumer=consumer,
            may_be_suspect=not SessionView(self.machine.state).has_suspect(consumer),
        )
        yield from self._done(records)
        if taken is not None:
            self.lease_id += 1
            self.given[taken.lease_id] = taken.offsets
            counts = {place: number for number, part in taken.deliveries.items() for place in part}
            what = ", ".join(
                self._delivered(place, counts.get(place, 1)) for place in taken.offsets
            )
            yield f"lease {taken.lease_id}: {what}"

    def do_start(self, options: Options) -> Iterable[str]:
        lease_id, offsets = self._lease(options)
        visibility_us = microseconds(options.pop("visibility", "30s"))
        consumer = next(
            (one.consumer for one in self.machine.state.reserved if one.offsets & offsets), ""
        )
        held, records = self.machine.start(
            lease_id, offsets, self.now, consumer=consumer, visibility_us=visibility_us
        )
        return self._settled(offsets, held, records)

    def do_release(self, options: Options) -> Iterable[str]:
        return self._done(self.machine.unreserve(*self._lease(options)))

    def do_end(self, options: Options) -> Iterable[str]:
        """The session with this lease is over: ``how`` is ``closed`` or ``silent``."""
        how = options.pop("how")
        assert how in ("closed", "silent"), how
        records = self.machine.end_session(
            int(options.pop("lease")), self.now, is_silent=how == "silent", reason="it ended"
        )
        return self._done(records)

    def do_cut(self, options: Options) -> Iterable[str]:
        deadline = Microseconds(self.now + microseconds(options.pop("to")))
        may_shorten = self.settings.guarantee is not Guarantee.EXACTLY_ONCE
        return self._done(self.machine.cut_sessions(deadline, may_shorten=may_shorten))

    # ------------------------------------------------------------------ settling

    def do_ack(self, options: Options) -> Iterable[str]:
        lease_id, offsets = self._lease(options)
        return self._settled(offsets, *self.machine.ack(lease_id, offsets))

    def do_hold(self, options: Options) -> Iterable[str]:
        lease_id, offsets = self._lease(options)
        transaction = TransactionId(int(options.pop("transaction")))
        return self._settled(offsets, *self.machine.hold(lease_id, offsets, transaction, self.now))

    def do_commit(self, options: Options) -> Iterable[str]:
        return self._closed(options, is_committed=True)

    def do_abort(self, options: Options) -> Iterable[str]:
        return self._closed(options, is_committed=False)

    def _closed(self, options: Options, *, is_committed: bool) -> Iterable[str]:
        transaction = TransactionId(int(options.pop("transaction")))
        return self._done(self.machine.close(transaction, is_committed=is_committed)[1])

    def do_nack(self, options: Options) -> Iterable[str]:
        lease_id, offsets = self._lease(options)
        delay = options.pop("delay", None)
        held, records = self.machine.nack(
            lease_id,
            offsets,
            self.now,
            None if delay is None else microseconds(delay),
            options.pop("error", None),
        )
        return self._settled(offsets, held, records)

    def do_reject(self, options: Options) -> Iterable[str]:
        lease_id, offsets = self._lease(options)
        held, records = self.machine.reject(lease_id, offsets, options.pop("error", None))
        return self._settled(offsets, held, records)

    def do_extend(self, options: Options) -> Iterable[str]:
        lease_id, offsets = self._lease(options)
        deadline = Microseconds(self.now + microseconds(options.pop("by")))
        return self._settled(offsets, *self.machine.extend(lease_id, offsets, deadline))

    def do_requeue(self, options: Options) -> Iterable[str]:
        return self._done(self.machine.requeue(*self._lease(options), self.now))

    def do_leave(self, options: Options) -> Iterable[str]:
        return self._done(self.machine.release(options.pop("consumer"), self.now))

    def _lease(self, options: Options) -> tuple[int, BitMap64]:
        lease_id = int(options.pop("lease"))
        if "offsets" in options:
            return lease_id, _offsets(options.pop("offsets"))
        return lease_id, self.given[lease_id]

    def _settled(
        self, offsets: BitMap64, held: BitMap64, records: list[AnyRecord]
    ) -> Iterable[str]:
        yield from self._done(records)
        if offsets != held:
            yield f"refused {_ranges(offsets - held)}"

    # ------------------------------------------------------------------ messages go

    def do_cancel(self, options: Options) -> Iterable[str]:
        return self._done(self.machine.drop(_offsets(options.pop("offsets")), CANCELLED))

    def do_give_up(self, options: Options) -> Iterable[str]:
        return self._done(self.machine.give_up(_offsets(options.pop("offsets")), PURGED))

    def do_bury(self, options: Options) -> Iterable[str]:
        chosen = options.pop("offsets", None)
        offsets = (
            self.machine.view.dead_letter_pending.copy() if chosen is None else _offsets(chosen)
        )
        return self._done(self.machine.dead_lettered(offsets))

    def do_seek(self, options: Options) -> Iterable[str]:
        yield from self._done(self.machine.seek(Offset(int(options.pop("to")))))
        self._observe(self.machine)

    def _observe(self, machine: DeliveryMachine) -> None:
        for arrival in self.arrivals:
            if machine.state.observed_to < arrival.next_offset:
                machine.state.observe(arrival)

    # ------------------------------------------------------------------ time and restarts

    def do_wait(self, options: Options) -> Iterable[str]:
        self.now = Microseconds(self.now + microseconds(options.pop("")))
        yield f"now {_clock(self.now)}"
        yield from self._done(self.machine.tick(self.now))

    def do_save(self, options: Options) -> Iterable[str]:
        self.saved = encode_snapshot(self.machine.state.snapshot()), len(self.records)
        yield "ok"

    def do_restart(self, options: Options) -> Iterable[str]:
        machine, records = DeliveryMachine(self.settings, Offset(0)), self.records
        if self.saved is not None:
            snapshot = decode_snapshot(self.saved[0])
            assert snapshot is not None
            machine.state.restore(snapshot)
            records = records[self.saved[1] :]
        for arrival in self.arrivals:
            if (
                machine.state.keys_from is not None
                and machine.state.keys_from < arrival.next_offset
            ):
                machine.state.learn(arrival)
        for record in records:
            self._observe(machine)
            machine.state.apply(record)
        self._observe(machine)
        self.machine = machine
        yield f"records applied: {len(records)}"
        yield from self._done(machine.tick(self.now))

    # ------------------------------------------------------------------ what there is to see

    def do_state(self, options: Options) -> Iterable[str]:
        machine = self.machine
        event = machine.view.next_event()
        yield (
            f"floor {machine.view.floor}, end {machine.state.observed_to}, "
            f"next event {'never' if event is None else _clock(event)}"
        )
        places = range(machine.state.observed_to)
        by_state = sorted((machine.view.state_of(Offset(place)), place) for place in places)
        for state, group in groupby(by_state, key=lambda pair: pair[0]):
            yield f"{state} {_ranges(place for _, place in group)}"
        if machine.state.reserved.held:
            yield f"pushed {_ranges(machine.state.reserved.held)}"
        for one in machine.state.pending_acks:
            yield f"held {_ranges(one.offsets)} for transaction {one.transaction}"
        if machine.state.suspects:
            yield f"suspects {_ranges(machine.state.suspects)}"

    def _done(self, records: list[AnyRecord]) -> Iterable[str]:
        self.records += records
        return map(self._shown, records)

    def _shown(self, record: AnyRecord) -> str:
        offsets = _ranges(record.bitmap)
        match record:
            case Leased():
                return f"leased {offsets} until {_clock(record.deadline)}"
            case Extended():
                return f"extended {offsets} until {_clock(record.deadline)}"
            case Returned():
                how = "" if record.counted else ", not counted"
                how += ", suspect" if record.is_suspect else ""
                return f"returned {offsets}, due {_clock(record.due)}{how}"
            case Held():
                return f"held {offsets} for transaction {record.transaction}"
            case DeadLetterPending():
                return f"dead_letter_pending {offsets}" + (
                    f": {record.error}" if record.error else ""
                )
            case DeadLettered():
                return f"dead-lettered {offsets}"
            case Finished():
                return f"finished {offsets}"
            case Sought():
                return f"begins again at {record.start}"


_COLUMNS = {
    "priority": "priority",
    "key": "key",
    "tenant": "tenants",
    "delay": "deliver_at",
    "expires": "expires_at",
    "passed": "passed",
}


def _spread(text: str, rows: int) -> list[str | None]:
    values = [None if value == "-" else value for value in text.split(",")]
    assert len(values) <= rows, f"{text}: more values than messages"
    return values + values[-1:] * (rows - len(values))


def _offsets(text: str) -> BitMap64:
    offsets = BitMap64()
    for part in text.split(","):
        first, _, last = part.partition("-")
        offsets.add_range(int(first), int(last or first) + 1)
    return offsets


def _ranges(offsets: Iterable[int]) -> str:
    """As people write them: ``0-4 7``."""
    shown = []
    for _, run in groupby(enumerate(offsets), key=lambda pair: pair[1] - pair[0]):
        places = [place for _, place in run]
        shown.append(f"{places[0]}-{places[-1]}" if len(places) > 1 else f"{places[0]}")
    return " ".join(shown)


def _clock(time: int) -> str:
    micros = time - START
    minutes, rest = divmod(abs(micros) // 1_000_000, 60)
    fraction = f".{abs(micros) % 1_000_000:06d}".rstrip("0").rstrip(".")
    sign = "-" if micros < 0 else ""
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{f'{hours}:' if hours else ''}{minutes:02d}:{rest:02d}{fraction}"
