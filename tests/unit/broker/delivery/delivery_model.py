"""What a subscription owes its consumers, message by message, in the plainest words.

``Model`` does what the delivery machine must do, with one object for each message and a loop for
each question. It knows nothing of sets, runs or heaps.
"""

from __future__ import annotations

from dataclasses import dataclass

from quiver.broker.delivery.machine.jitter import jittered_us
from quiver.model.subscription import Guarantee, Ordering, SubscriptionSettings

DEFAULT_PRIORITY = 4
LAPSED = "its lease ended before it was settled"
SUSPECT_US = 10_000_000


@dataclass
class Message:
    offset: int
    published: int
    key: bytes | None = None
    priority: int = DEFAULT_PRIORITY
    due: int | None = None
    expires: int | None = None
    state: str = "ready"
    """ready (be it that it waits for its key), delayed, reserved, leased, held (for a transaction),
    dead_letter_pending, dead or finished."""
    deliveries: int = 0
    lease_id: int = 0
    transaction: int = 0
    consumer: str = ""
    granted: int = 0
    deadline: int = 0
    expired_in_lease: bool = False
    under_way: bool = False
    """It was taken, and is not finished."""
    error: str = ""
    is_session: bool = False
    """It was started by a consumer with a session."""
    is_suspect: bool = False
    """A consumer ended without a word while it had this."""
    was_suspect: bool = False
    """The same, and no record says that it is none any more."""

    @property
    def is_out(self) -> bool:
        """Some consumer has it, be it that it was only pushed to it, or a transaction."""
        return self.state in ("reserved", "leased", "held")

    @property
    def shown_state(self) -> str:
        return {"reserved": "ready", "held": "leased"}.get(self.state, self.state)


class Model:
    def __init__(self, settings: SubscriptionSettings, start: int) -> None:
        self.settings = settings
        self.start = start
        self.end = start
        self.messages: dict[int, Message] = {}
        self.acked: set[tuple[int, int]] = set()
        """Leases and offsets that were finished under them: to be told so again."""
        self.suspects_cleared_at = 0

    # ------------------------------------------------------------------ what is there

    def of_state(self, *states: str) -> list[Message]:
        return [message for message in self.messages.values() if message.state in states]

    @property
    def unfinished(self) -> list[Message]:
        return self.of_state(
            "ready", "delayed", "reserved", "leased", "held", "dead_letter_pending"
        )

    @property
    def floor(self) -> int:
        return min((message.offset for message in self.unfinished), default=self.end)

    def deliverable(self) -> list[Message]:
        """What may be delivered, in no order."""
        if self.settings.ordering is Ordering.PARTITION:
            if self.of_state("reserved", "leased", "held", "dead_letter_pending"):
                return []
            retried = [one.offset for one in self.of_state("delayed") if one.deliveries]
            first = min(retried, default=self.end)
            return [message for message in self.of_state("ready") if message.offset < first]
        return [message for message in self.of_state("ready") if not self._waits(message)]

    def _waits(self, message: Message) -> bool:
        if self.settings.ordering is not Ordering.KEY or message.key is None or message.under_way:
            return False
        others = [other for other in self.unfinished if other.key == message.key]
        return any(
            other.under_way
            or other.state == "reserved"
            or (other.state == "ready" and other.offset < message.offset)
            for other in others
        )

    def next_event(self) -> int | None:
        times: list[int] = []
        for message in self.unfinished:
            if message.state == "delayed":
                assert message.due is not None
                times.append(message.due)
            if message.state == "leased":
                times.append(message.deadline)
            if message.state != "dead_letter_pending" and message.expires is not None:
                times += [] if message.expired_in_lease else [message.expires]
        if any(message.is_suspect for message in self.of_state("leased")):
            times.append(self.suspects_cleared_at)
        return min(times, default=None)

    # ------------------------------------------------------------------ what happens

    def publish(self, message: Message | None) -> None:
        """The next message; ``None`` is one that the filter keeps back."""
        if message is not None:
            assert message.offset == self.end
            message.state = "ready" if message.due is None else "delayed"
            self.messages[message.offset] = message
        self.end += 1

    def tick(self, now: int) -> None:
        for message in self.unfinished:
            if (
                message.expires is None
                or message.expires > now
                or message.state == "dead_letter_pending"
            ):
                continue
            if message.is_out:
                message.expired_in_lease = True
            else:
                self._finish(message)
        lapsed = [one for one in self.of_state("leased") if one.deadline <= now]
        for lease_id in {message.lease_id for message in lapsed}:
            together = [message for message in lapsed if message.lease_id == lease_id]
            self._return_counted(together, now, error=LAPSED, is_suspect=together[0].is_session)
        self._end_delays(now)
        suspects = [message for message in self.unfinished if message.is_suspect]
        if suspects and now >= self.suspects_cleared_at:
            self.suspects_cleared_at = now + SUSPECT_US
            for message in suspects:
                due = message.granted + SUSPECT_US
                if message.state == "leased" and due <= now:
                    message.is_suspect = False
                elif message.state == "leased":
                    self.suspects_cleared_at = min(self.suspects_cleared_at, due)

    def _end_delays(self, now: int) -> None:
        for message in self.of_state("delayed"):
            if message.due is not None and message.due <= now:
                message.state = "ready"

    def take(
        self, now: int, limit: int, lease_id: int, consumer: str, visibility: int
    ) -> list[int]:
        self.tick(now)
        taken = self._next(now, limit)
        for message in taken:
            message.lease_id, message.consumer = lease_id, consumer
        self._deliver(taken, now, visibility, is_session=False)
        return [message.offset for message in taken]

    def _next(self, now: int, limit: int, *, may_be_suspect: bool = True) -> list[Message]:
        """What is to be delivered next: a suspect alone."""
        ranked = sorted(self.deliverable(), key=lambda message: self._rank(message, now))
        if self.settings.ordering is not Ordering.PARTITION and not may_be_suspect:
            return [message for message in ranked if not message.is_suspect][:limit]
        chosen = ranked[:limit]
        suspects = sorted(one.offset for one in chosen if one.is_suspect)
        if not suspects:
            return chosen
        before = [message for message in chosen if message.offset < suspects[0]]
        if self.settings.ordering is Ordering.PARTITION and before:
            return before
        return [self.messages[suspects[0]]] if may_be_suspect else []

    def _deliver(
        self, messages: list[Message], now: int, visibility: int, *, is_session: bool
    ) -> None:
        for message in messages:
            message.state = "leased"
            message.under_way = True
            message.deliveries += 1
            message.granted, message.deadline = now, now + visibility
            message.is_session = is_session
            if self.settings.guarantee is Guarantee.AT_MOST_ONCE:
                self._finish(message)

    def _rank(self, message: Message, now: int) -> tuple[int, int, int]:
        if self.settings.ordering is not Ordering.NONE:
            return 0, 0, message.offset
        aged = 0
        if self.settings.ageing_us:
            aged = max(0, now - message.published) // self.settings.ageing_us
        return -(message.priority + aged), -message.priority, message.offset

    # ------------------------------------------------------------------ consumers with a session

    def reserve(
        self, now: int, limit: int, lease_id: int, consumer: str, *, may_be_suspect: bool
    ) -> list[int]:
        self.tick(now)
        chosen = self._next(now, limit, may_be_suspect=may_be_suspect)
        for message in chosen:
            message.state = "reserved"
            message.lease_id, message.consumer = lease_id, consumer
        return [message.offset for message in chosen]

    def reserved(self, lease_id: int, offsets: set[int]) -> list[Message]:
        reserved = self.of_state("reserved")
        return [one for one in reserved if one.lease_id == lease_id and one.offset in offsets]

    def start_reserved(
        self, lease_id: int, offsets: set[int], now: int, visibility: int
    ) -> set[int]:
        started = self.reserved(lease_id, offsets)
        if started:
            self._end_delays(now)
        self._deliver(started, now, visibility, is_session=True)
        return {message.offset for message in started}

    def unreserve(self, lease_id: int, offsets: set[int]) -> None:
        for message in self.reserved(lease_id, offsets):
            message.lease_id = 0
            if message.expired_in_lease:
                self._finish(message)
            else:
                message.state = "ready"

    def end_session(self, lease_id: int, now: int, *, is_silent: bool, reason: str) -> None:
        everything = set(self.messages)
        self.unreserve(lease_id, everything)
        held = self.held(lease_id, everything)
        self._return_counted(held, now, 0, reason, is_suspect=is_silent)
        self._end_delays(now)

    def cut_sessions(self, deadline: int, *, may_shorten: bool) -> None:
        for message in self.of_state("leased"):
            if message.is_session:
                kept = deadline if may_shorten else message.deadline
                message.deadline = max(kept, deadline)

    def restart(self) -> None:
        """Nobody knows any more what was reserved."""
        for message in self.of_state("reserved"):
            self.unreserve(message.lease_id, {message.offset})
        self.suspects_cleared_at = 0

    # ------------------------------------------------------------------ settling

    def held(self, lease_id: int, offsets: set[int]) -> list[Message]:
        leased = self.of_state("leased")
        return [one for one in leased if one.lease_id == lease_id and one.offset in offsets]

    def ack(self, lease_id: int, offsets: set[int]) -> set[int]:
        held = self.held(lease_id, offsets)
        for message in held:
            self._finish(message)
        return {offset for offset in offsets if (lease_id, offset) in self.acked}

    def hold(self, lease_id: int, offsets: set[int], transaction: int) -> set[int]:
        for message in self.held(lease_id, offsets):
            message.state, message.transaction = "held", transaction
            message.is_suspect = message.was_suspect = False
        return {
            one.offset
            for one in self.of_state("held")
            if (one.lease_id, one.transaction) == (lease_id, transaction) and one.offset in offsets
        }

    def close(self, transaction: int, *, is_committed: bool) -> set[int]:
        waiting = [one for one in self.of_state("held") if one.transaction == transaction]
        for message in waiting:
            if is_committed or message.expired_in_lease:
                self._finish(message)
            else:
                message.deliveries -= 1
                message.state, message.due, message.lease_id = "ready", 0, 0
        return {one.offset for one in waiting if is_committed}

    def nack(
        self, lease_id: int, offsets: set[int], now: int, delay: int | None, error: str
    ) -> set[int]:
        held = self.held(lease_id, offsets)
        self._return_counted(held, now, delay, error)
        return {message.offset for message in held}

    def reject(self, lease_id: int, offsets: set[int], error: str) -> set[int]:
        held = self.held(lease_id, offsets)
        for message in held:
            if message.expired_in_lease:
                self._finish(message)
            else:
                message.state, message.error = "dead_letter_pending", error
                message.is_suspect = message.was_suspect = False
                message.lease_id = 0
        return {message.offset for message in held}

    def extend(self, lease_id: int, offsets: set[int], deadline: int) -> set[int]:
        held = self.held(lease_id, offsets)
        for message in held:
            message.deadline = deadline
        return {message.offset for message in held}

    def requeue(self, lease_id: int, offsets: set[int], now: int) -> None:
        for message in self.held(lease_id, offsets):
            if message.expired_in_lease:
                self._finish(message)
            else:
                message.deliveries -= 1
                message.state, message.due, message.lease_id = "ready", 0, 0

    def release(self, consumer: str, now: int) -> None:
        for message in self.of_state("reserved", "leased"):
            if message.consumer == consumer:
                self.unreserve(message.lease_id, {message.offset})
                self.requeue(message.lease_id, {message.offset}, now)

    def dead_letter(self, offsets: set[int]) -> None:
        for message in self.of_state("dead_letter_pending"):
            if message.offset in offsets:
                self._finish(message)
                message.state = "dead"

    def drop(self, offsets: set[int]) -> None:
        for message in self.of_state("ready", "delayed"):
            if message.offset in offsets:
                self._finish(message)

    def give_up(self, offsets: set[int]) -> None:
        for message in self.unfinished:
            if message.offset in offsets:
                self._finish(message)

    def skip_to(self, start: int) -> None:
        self.give_up(set(range(start)))
        self.messages = {place: one for place, one in self.messages.items() if place >= start}
        self.acked = {one for one in self.acked if one[1] >= start}
        self.start, self.end = max(self.start, start), max(self.end, start)

    def seek(self, start: int, stored: list[Message]) -> None:
        """Begin again at ``start``; ``stored`` is what was published from there on."""
        self.give_up(set(range(start)))
        self.messages = {place: one for place, one in self.messages.items() if place < start}
        self.acked.clear()
        for message in stored:
            message.state = "ready" if message.due is None else "delayed"
            self.messages[message.offset] = message

    def forget_from(self, end: int) -> None:
        self.messages = {place: one for place, one in self.messages.items() if place < end}
        self.acked = {one for one in self.acked if one[1] < end}
        self.end = min(self.end, end)

    def _return_counted(
        self,
        together: list[Message],
        now: int,
        delay: int | None = None,
        error: str = "",
        *,
        is_suspect: bool = False,
    ) -> None:
        """Messages of one lease that go back in the same moment: those tried as often rest as long."""
        most = self.settings.max_deliveries
        for message in [one for one in together if one.expired_in_lease]:
            self._finish(message)
        failed = [one for one in together if one.state == "leased"]
        lowest = {one.deliveries: one.offset for one in sorted(failed, key=_offset, reverse=True)}
        for message in failed:
            if most and message.deliveries >= most:
                message.state, message.error = "dead_letter_pending", error
                message.is_suspect = message.was_suspect = False
            else:
                rest = delay
                if rest is None:
                    longest = self.settings.backoff.delay_us(message.deliveries)
                    rest = jittered_us(longest, message.lease_id, lowest[message.deliveries])
                message.state, message.due = "delayed", now + rest
                message.is_suspect = message.was_suspect = is_suspect
            message.lease_id = 0

    def _finish(self, message: Message) -> None:
        if message.lease_id and message.state != "reserved":
            self.acked.add((message.lease_id, message.offset))
        message.state = "finished"
        message.deliveries = message.lease_id = 0
        message.under_way = message.expired_in_lease = False
        message.is_suspect = message.was_suspect = False
        message.error = ""


def _offset(message: Message) -> int:
    return message.offset
