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


@dataclass
class Message:
    offset: int
    published: int
    key: bytes | None = None
    priority: int = DEFAULT_PRIORITY
    due: int | None = None
    expires: int | None = None
    state: str = "ready"
    """ready (be it that it waits for its key), delayed, leased, condemned, dead or finished."""
    deliveries: int = 0
    lease_id: int = 0
    consumer: str = ""
    deadline: int = 0
    expired_in_lease: bool = False
    under_way: bool = False
    """It was taken, and is not finished."""
    error: str = ""


class Model:
    def __init__(self, settings: SubscriptionSettings, start: int) -> None:
        self.settings = settings
        self.start = start
        self.end = start
        self.messages: dict[int, Message] = {}
        self.acked: set[tuple[int, int]] = set()
        """Leases and offsets that were finished under them: to be told so again."""

    # ------------------------------------------------------------------ what is there

    def of_state(self, *states: str) -> list[Message]:
        return [message for message in self.messages.values() if message.state in states]

    @property
    def unfinished(self) -> list[Message]:
        return self.of_state("ready", "delayed", "leased", "dead_letter_pending")

    @property
    def floor(self) -> int:
        return min((message.offset for message in self.unfinished), default=self.end)

    def deliverable(self) -> list[Message]:
        """What may be delivered, in no order."""
        if self.settings.ordering is Ordering.PARTITION:
            if self.of_state("leased", "dead_letter_pending"):
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
            other.under_way or (other.state == "ready" and other.offset < message.offset)
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
            if message.state == "leased":
                message.expired_in_lease = True
            else:
                self._finish(message)
        lapsed = [one for one in self.of_state("leased") if one.deadline <= now]
        for lease_id in {message.lease_id for message in lapsed}:
            together = [message for message in lapsed if message.lease_id == lease_id]
            self._return_counted(together, now, error=LAPSED)
        for message in self.of_state("delayed"):
            if message.due is not None and message.due <= now:
                message.state = "ready"

    def take(
        self, now: int, limit: int, lease_id: int, consumer: str, visibility: int
    ) -> list[int]:
        self.tick(now)
        taken = sorted(self.deliverable(), key=lambda message: self._rank(message, now))[:limit]
        for message in taken:
            message.state = "leased"
            message.under_way = True
            message.deliveries += 1
            message.lease_id, message.consumer = lease_id, consumer
            message.deadline = now + visibility
        if self.settings.guarantee is Guarantee.AT_MOST_ONCE:
            for message in taken:
                self._finish(message)
        return [message.offset for message in taken]

    def _rank(self, message: Message, now: int) -> tuple[int, int, int]:
        if self.settings.ordering is not Ordering.NONE:
            return 0, 0, message.offset
        aged = 0
        if self.settings.ageing_us:
            aged = max(0, now - message.published) // self.settings.ageing_us
        return -(message.priority + aged), -message.priority, message.offset

    def held(self, lease_id: int, offsets: set[int]) -> list[Message]:
        leased = self.of_state("leased")
        return [one for one in leased if one.lease_id == lease_id and one.offset in offsets]

    def ack(self, lease_id: int, offsets: set[int]) -> set[int]:
        held = self.held(lease_id, offsets)
        for message in held:
            self._finish(message)
        return {offset for offset in offsets if (lease_id, offset) in self.acked}

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
        for message in self.of_state("leased"):
            if message.consumer == consumer:
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
        self, together: list[Message], now: int, delay: int | None = None, error: str = ""
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
            else:
                rest = delay
                if rest is None:
                    longest = self.settings.backoff.delay_us(message.deliveries)
                    rest = jittered_us(longest, message.lease_id, lowest[message.deliveries])
                message.state, message.due = "delayed", now + rest
            message.lease_id = 0

    def _finish(self, message: Message) -> None:
        if message.lease_id:
            self.acked.add((message.lease_id, message.offset))
        message.state = "finished"
        message.deliveries = message.lease_id = 0
        message.under_way = message.expired_in_lease = False
        message.error = ""


def _offset(message: Message) -> int:
    return message.offset
