"""Shared transactions through crashes, against a simple model: a number is committed once, as one of those
who committed it has said, and no part of it has two answers."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quiver.broker.transactions.machine import Records
from quiver.broker.transactions.records import decode_record, encode_record
from quiver.broker.transactions.shared import Part, SharedEnding
from quiver.broker.transactions.shared_machine import SharedTransactionMachine
from quiver.errors import TransactionError
from quiver.model.ids import Microseconds, ProducerEpoch, ProducerId
from quiver.model.transaction import TransactionId, TransactionState, transaction_id
from quiver.protocol import Participant
from tests.unit.broker.transactions.test_machine import abort, at

NAME, TIMEOUT_S = "|sink|", 60
PARTITIONS = tuple(Participant("orders", index) for index in range(3))
ENDED = (TransactionState.COMMITTED, TransactionState.ABORTED)
NUMBERS, PARTS = 3, 4
number_of, part = st.integers(0, NUMBERS - 1), st.integers(0, PARTS - 1)
some = st.lists(part, min_size=1, max_size=3, unique=True)


class SharedCoordinator(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = SharedTransactionMachine()
        self.log: Records = []
        self.durable = 0
        self.now = 0
        self.joined: dict[TransactionId, int] = {}
        """By part: the number that its client was told it is a part of."""
        self.joining: dict[TransactionId, int] = {}
        self.wanted: dict[int, list[frozenset[TransactionId]]] = {}
        """By number: the parts of each who wanted to commit it."""
        self.committed: set[int] = set()
        """Numbers that somebody was told are committed."""
        self.waiting: list[int] = []
        self.answers: dict[TransactionId, bool] = {}
        self.wrote(self.machine.begin_shared(NAME, "", ProducerId(1), 0, self.time()))
        self.flush()

    def wrote(self, records: Records) -> None:
        self.log += [decode_record(encode_record(record)) for record in records]

    def time(self) -> Microseconds:
        return at(self.now)

    # ------------------------------------------------------------------ steps

    @rule(number=number_of, which=part, reached=st.sets(st.sampled_from(PARTITIONS)))
    def join(self, number: int, which: int, reached: set[Participant]) -> None:
        one = part_of(number, which)
        joining = Part(
            transaction=one,
            name=NAME,
            number=number,
            timeout_us=at(TIMEOUT_S),
            participants=list(reached),
        )
        try:
            is_committed, records = self.machine.join_shared(joining, self.time())
        except TransactionError:
            return
        self.wrote(records)
        if is_committed:
            self.waiting.append(number)
        else:
            self.joining[one] = number

    @rule(number=number_of, which=some, reached=st.sets(st.sampled_from(PARTITIONS)))
    def commit(self, number: int, which: list[int], reached: set[Participant]) -> None:
        self.commit_parts(number, [part_of(number, one) for one in which], reached)

    @rule(number=number_of, one=part, reached=st.sets(st.sampled_from(PARTITIONS)))
    def write_and_commit(self, number: int, one: int, reached: set[Participant]) -> None:
        """As a driver that runs a batch, for the first time or again."""
        self.join(number, one, reached)
        self.commit_parts(number, [part_of(number, one)], reached)

    def commit_parts(
        self, number: int, parts: list[TransactionId], reached: set[Participant]
    ) -> None:
        self.wanted.setdefault(number, []).append(frozenset(parts))
        ending = SharedEnding(
            name=NAME, number=number, is_commit=True, parts=parts, participants=list(reached)
        )
        outcome, records = self.machine.end_shared(ending, self.time())
        self.wrote(records)
        if outcome.is_committed:
            self.waiting.append(number)

    @rule(number=number_of)
    def abort(self, number: int) -> None:
        ending = SharedEnding(name=NAME, number=number, is_commit=False)
        self.wrote(self.machine.end_shared(ending, self.time())[1])

    @rule(number=number_of, which=part)
    def abort_part(self, number: int, which: int) -> None:
        self.wrote(self.machine.end(abort(part_of(number, which)), self.time())[1])

    @rule(number=number_of, which=some)
    def resolve(self, number: int, which: list[int]) -> None:
        asked = [part_of(number, one) for one in which]
        self.wrote(self.machine.resolve(asked, self.time())[1])

    @rule(seconds=st.sampled_from([1, 30, 61]))
    def tick(self, seconds: int) -> None:
        self.now += seconds
        self.wrote(self.machine.tick(self.time()))

    @rule()
    def flush(self) -> None:
        """Everything is durable: what was decided is told."""
        self.durable = len(self.log)
        self.committed.update(self.waiting)
        self.joined |= self.joining
        self.waiting, self.joining = [], {}
        for number in range(NUMBERS):
            for which in range(PARTS):
                one = part_of(number, which)
                state = self.machine.describe(one)
                if state in ENDED:
                    is_committed = state is TransactionState.COMMITTED
                    known = self.answers.setdefault(one, is_committed)
                    assert known == is_committed, "there were two answers"

    @rule()
    def checkpoint(self) -> None:
        self.wrote([self.machine.checkpoint()])
        self.flush()
        self.log, self.durable = self.log[-1:], 1

    @rule(lost=st.integers(0, 10))
    def crash(self, lost: int) -> None:
        self.log = self.log[: max(self.durable, len(self.log) - lost)]
        self.durable = len(self.log)
        self.waiting, self.joining = [], {}
        self.machine = SharedTransactionMachine()
        for record in self.log:
            self.machine.apply(record)

    # ------------------------------------------------------------------ what holds

    @invariant()
    def a_number_is_committed_as_somebody_has_said(self) -> None:
        counted = [self.committed_parts(number) for number in range(NUMBERS)]
        for number, parts in enumerate(counted):
            assert not parts or parts in self.wanted.get(number, [])
            if number in self.committed:
                # A commit of a later number answers for all before it, told or not.
                assert any(counted[number:]), "what was told to be committed is not"

    def committed_parts(self, number: int) -> set[TransactionId]:
        parts = (part_of(number, which) for which in range(PARTS))
        return {one for one in parts if self.machine.describe(one) is TransactionState.COMMITTED}

    @invariant()
    def nothing_is_open_of_a_number_that_is_committed(self) -> None:
        last = max(self.committed, default=-1)
        assert not [one for one in self.machine.open if self.joined.get(one, last + 1) <= last]

    @invariant()
    def the_fold_is_the_state(self) -> None:
        fold = SharedTransactionMachine()
        for record in self.log:
            fold.apply(record)
        mine, read = self.machine.checkpoint(), fold.checkpoint()
        assert (read.names, read.shared) == (mine.names, mine.shared)


def part_of(number: int, which: int) -> TransactionId:
    return transaction_id(ProducerId(1 + which), ProducerEpoch(number))


SharedCoordinator.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestSharedCoordinator = SharedCoordinator.TestCase
