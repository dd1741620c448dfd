"""A coordinator through crashes, against a simple model: never two answers, all participants or none.

What was answered was durable then. A crash takes any records away that were not, and the next machine is
a fold over the rest.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quiver.broker.transactions.machine import Ending, Records, TransactionMachine
from quiver.broker.transactions.records import Checkpoint, decode_record, encode_record
from quiver.errors import TransactionError, TransactionNotFound
from quiver.model.ids import Microseconds, ProducerEpoch, ProducerId
from quiver.model.transaction import TransactionId, TransactionState, transaction_id
from quiver.protocol import Participant

NAMES = ("|one", "|two")
PARTITIONS = tuple(Participant("orders", index) for index in range(3))
ENDED = (TransactionState.COMMITTED, TransactionState.ABORTED)


class Coordinator(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = TransactionMachine()
        self.log: Records = []
        self.durable = 0
        self.now = 0
        self.begun: dict[TransactionId, int] = {}
        self.producers: list[tuple[ProducerId, str | None]] = []
        self.held_by: dict[str, ProducerId] = {}
        """By name: who began last, durably."""
        self.waiting: list[tuple[TransactionId, bool, bool]] = []
        """Answers that wait for their records: whether committed, and whether it was a new decision."""
        self.answers: dict[TransactionId, bool] = {}
        self.partitions: dict[tuple[Participant, TransactionId], bool] = {}

    # ------------------------------------------------------------------ steps

    def wrote(self, records: Records) -> None:
        self.log += [decode_record(encode_record(record)) for record in records]

    def time(self) -> Microseconds:
        return Microseconds(self.now * 1_000_000)

    @rule(name=st.sampled_from([None, *NAMES]))
    def begin(self, name: str | None) -> None:
        producer = ProducerId(len(self.producers) + 1)
        self.producers.append((producer, name))
        if name is not None:
            self.wrote(self.machine.begin(name, "", producer, 0, self.time()))
            self.flush()
            self.held_by[name] = producer

    @rule(
        which=st.integers(0, 5),
        epoch=st.integers(0, 2),
        is_commit=st.booleans(),
        age_s=st.sampled_from([0, 30, 90]),
        reached=st.sets(st.sampled_from(PARTITIONS)),
    )
    def end(
        self, which: int, epoch: int, is_commit: bool, age_s: int, reached: set[Participant]
    ) -> None:
        if not self.producers:
            return
        producer, name = self.producers[which % len(self.producers)]
        transaction = transaction_id(producer, ProducerEpoch(epoch))
        age_s += self.now - self.begun.setdefault(transaction, self.now)
        ending = Ending(
            transaction=transaction,
            is_commit=is_commit,
            name=name,
            participants=list(reached),
            age_us=age_s * 1_000_000,
        )
        try:
            outcome, records = self.machine.end(ending, self.time())
        except TransactionNotFound:
            assert age_s >= 3600
            return
        self.wrote(records)
        if records and outcome.is_committed:
            assert name is None or self.held_by[name] == producer, "the fenced one has committed"
            assert age_s < 60, "it was committed after its time limit"
        self.waiting.append((transaction, outcome.is_committed, bool(records)))

    @rule(which=st.integers(0, 5), epoch=st.integers(0, 2))
    def resolve(self, which: int, epoch: int) -> None:
        if self.producers:
            producer, _ = self.producers[which % len(self.producers)]
            transaction = transaction_id(producer, ProducerEpoch(epoch))
            if self.now - self.begun.setdefault(transaction, self.now) >= 3600:
                return  # partitions ask within seconds
            states, records = self.machine.resolve([transaction], self.time())
            self.wrote(records)
            if states[transaction] in ENDED:
                is_committed = states[transaction] is TransactionState.COMMITTED
                self.waiting.append((transaction, is_committed, False))

    @rule(which=st.integers(0, 5), timeout_s=st.sampled_from([60, 900]))
    def join(self, which: int, timeout_s: int) -> None:
        if self.producers:
            producer, _ = self.producers[which % len(self.producers)]
            try:
                joined = transaction_id(producer, ProducerEpoch(0))
                self.wrote(self.machine.join(joined, timeout_s * 1_000_000, [], self.time()))
            except TransactionError:
                pass

    @rule(seconds=st.sampled_from([1, 61, 700]))
    def tick(self, seconds: int) -> None:
        self.now += seconds
        self.wrote(self.machine.tick(self.time()))

    @rule()
    def flush(self) -> None:
        """Everything is durable: those who wait get their answers."""
        self.durable = len(self.log)
        for transaction, is_committed, _ in self.waiting:
            known = self.answers.setdefault(transaction, is_committed)
            assert known == is_committed, "there were two answers"
        self.waiting = []

    @rule(participant=st.sampled_from(PARTITIONS))
    def tell(self, participant: Participant) -> None:
        """What is durable is told to a participant, which confirms it."""
        self.flush()
        told = {
            transaction: one.outcome.is_committed
            for transaction, one in self.machine.unfinished.items()
            if participant in one.left
        }
        for transaction, is_committed in told.items():
            assert self.partitions.setdefault((participant, transaction), is_committed) == (
                is_committed
            )
            assert self.answers.setdefault(transaction, is_committed) == is_committed
        self.wrote(self.machine.confirm(participant, told)[1])

    @rule()
    def checkpoint(self) -> None:
        self.wrote([self.machine.checkpoint()])
        self.flush()
        self.log, self.durable = self.log[-1:], 1
        assert isinstance(self.log[0], Checkpoint)

    @rule(lost=st.integers(0, 10))
    def crash(self, lost: int) -> None:
        self.log = self.log[: max(self.durable, len(self.log) - lost)]
        self.durable = len(self.log)
        self.waiting = []
        self.machine = TransactionMachine()
        for record in self.log:
            self.machine.apply(record)

    # ------------------------------------------------------------------ what holds

    @invariant()
    def the_fold_is_the_state(self) -> None:
        """But for what is open by default, which is in memory alone."""
        fold = TransactionMachine()
        for record in self.log:
            fold.apply(record)
        if not self.log:
            return
        mine, read = self.machine.checkpoint(), fold.checkpoint()
        assert read.names == mine.names
        assert {one.transaction for one in read.unfinished} == {
            one.transaction for one in mine.unfinished
        }

    @invariant()
    def an_answer_is_still_known(self) -> None:
        for transaction, is_committed in self.answers.items():
            outcome = self.machine.outcome(transaction)
            if outcome is not None:
                assert outcome.is_committed == is_committed


Coordinator.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCoordinator = Coordinator.TestCase
