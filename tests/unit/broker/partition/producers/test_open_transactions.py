"""Open transactions: readers stop before the first, and what was aborted stays hidden for good."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from quiver.broker.partition.producers.open_transactions import OpenTransactions
from quiver.model.batch import StoredBatch
from quiver.model.envelope import (
    TRANSACTIONAL,
    ProducerStamp,
    seal_batch,
    seal_marker,
    store_batch,
)
from quiver.model.ids import LeaderEpoch, Microseconds, Offset, ProducerEpoch, ProducerId
from quiver.model.transaction import TransactionId, transaction_id


def _batch(at: int, count: int = 1, producer: int = 0, epoch: int = 0) -> StoredBatch:
    """Of a transaction, or of none without a producer."""
    stamp = ProducerStamp(ProducerId(producer), ProducerEpoch(epoch))
    sealed = seal_batch(b"x", count, 1, stamp, TRANSACTIONAL if producer else 0)
    return store_batch(
        sealed,
        base_offset=Offset(at),
        epoch=LeaderEpoch(0),
        append_time=Microseconds(1000 + at),
        durable_offset=Offset(0),
    )


def _marker(at: int, *producers: int, commit: bool, epoch: int = 0) -> StoredBatch:
    sealed = seal_marker([_id(one, epoch) for one in producers], is_committed=commit)
    return store_batch(
        sealed,
        base_offset=Offset(at),
        epoch=LeaderEpoch(0),
        append_time=Microseconds(1000 + at),
        durable_offset=Offset(0),
    )


def _id(producer: int, epoch: int = 0) -> TransactionId:
    return transaction_id(ProducerId(producer), ProducerEpoch(epoch))


def _recorded(*entries: StoredBatch) -> OpenTransactions:
    transactions = OpenTransactions()
    for entry in entries:
        transactions.record(entry)
    return transactions


def test_without_transactions_readers_go_to_the_end() -> None:
    assert _recorded(_batch(0), _batch(1)).stable_offset(Offset(2)) == 2


def test_readers_stop_before_the_first_batch_of_an_open_transaction() -> None:
    transactions = _recorded(_batch(0), _batch(1, 2, producer=7), _batch(3))
    assert transactions.stable_offset(Offset(4)) == 1


def test_a_marker_counts_once_it_can_be_read() -> None:
    transactions = _recorded(_batch(0, 2, producer=7), _marker(2, 7, commit=True))
    assert transactions.stable_offset(Offset(2)) == 0
    assert transactions.stable_offset(Offset(3)) == 3


def test_a_marker_that_is_shown_counts_before_it_can_be_read() -> None:
    transactions = _recorded(
        _batch(0, producer=7), _batch(1, producer=8), _marker(2, 7, 8, commit=True)
    )
    transactions.show([Offset(2)], Offset(2))
    assert transactions.stable_offset(Offset(2)) == 2
    assert transactions.marker_of(_id(8)) == 2
    assert transactions.stable_offset(Offset(3)) == 3
    transactions.record(_batch(3, producer=9))
    assert transactions.stable_offset(Offset(4)) == 3
    assert transactions.marker_of(_id(8)) is None


def test_a_marker_that_is_shown_passes_no_earlier_transaction() -> None:
    transactions = _recorded(
        _batch(0, producer=7), _batch(1, producer=8), _marker(2, 8, commit=True)
    )
    transactions.show([Offset(2)], Offset(2))
    assert transactions.stable_offset(Offset(2)) == 0


def test_one_marker_ends_several_transactions() -> None:
    entries = [_batch(at, producer=at + 1) for at in range(3)]
    transactions = _recorded(*entries, _marker(3, 1, 3, commit=False))
    assert transactions.stable_offset(Offset(4)) == 1
    assert list(transactions.hidden) == [0, 2, 3]
    assert [transactions.is_open(_id(one)) for one in (1, 2, 3)] == [False, True, False]


def test_a_batch_that_cannot_be_read_yet_holds_nobody_back() -> None:
    transactions = _recorded(_batch(0), _batch(1), _batch(2, producer=7))
    assert transactions.stable_offset(Offset(1)) == 1


def test_the_end_of_a_later_transaction_does_not_pass_an_earlier_one() -> None:
    transactions = _recorded(
        _batch(0, producer=7), _batch(1, producer=8), _marker(2, 8, commit=True)
    )
    assert transactions.stable_offset(Offset(3)) == 0
    transactions.record(_marker(3, 7, commit=True))
    assert transactions.stable_offset(Offset(4)) == 4


def test_markers_and_messages_of_aborted_transactions_are_hidden() -> None:
    transactions = _recorded(
        _batch(0, 3, producer=7),
        _batch(3),
        _batch(4, 2, producer=8),
        _batch(6, 1, producer=7),
        _marker(7, 7, commit=False),
        _marker(8, 8, commit=True),
    )
    assert list(transactions.hidden) == [0, 1, 2, 6, 7, 8]


def test_the_marker_of_one_epoch_ends_no_other() -> None:
    transactions = _recorded(
        _batch(0, producer=7), _batch(1, producer=7, epoch=1), _marker(2, 7, commit=True)
    )
    assert transactions.is_open(_id(7, 1))
    assert not transactions.is_open(_id(7))
    assert transactions.stable_offset(Offset(3)) == 1


def test_those_that_began_before_a_time_are_known() -> None:
    transactions = _recorded(_batch(0, producer=7), _batch(5, producer=8))
    assert transactions.older_than(Microseconds(1001)) == [_id(7)]
    assert transactions.older_than(Microseconds(9999)) == [_id(7), _id(8)]


def test_a_marker_under_way_can_be_waited_for() -> None:
    transactions = _recorded(_batch(0, producer=7), _marker(1, 7, commit=True))
    assert transactions.marker_of(_id(7)) == 1
    assert transactions.stable_offset(Offset(2)) == 2
    assert transactions.marker_of(_id(7)) is None


def test_what_is_hidden_before_the_start_is_forgotten() -> None:
    transactions = _recorded(_batch(0, 2, producer=7), _marker(2, 7, commit=False))
    transactions.forget_before(Offset(2))
    assert list(transactions.hidden) == [2]


# ---------------------------------------------------------------------- against a naive model

_producers = st.integers(1, 4)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("batch"), st.integers(1, 3), _producers),
        st.tuples(st.sampled_from(["commit", "abort"]), st.just(1), _producers),
    ),
    max_size=40,
)


class _Naive:
    """Looks at all entries for each answer."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int, int, int]] = []
        """What it is, from where to where, of which producer and epoch."""
        self.next = 0
        self.epochs: dict[int, int] = {}

    def add(self, kind: str, count: int, producer: int) -> StoredBatch | None:
        at, epoch = self.next, self.epochs.get(producer, 0)
        is_marker = kind in ("commit", "abort")
        known = [row for row in self.rows if row[3:] == (producer, epoch)]
        if is_marker and not known:
            return None
        self.next += count
        self.rows.append((kind, at, self.next, producer, epoch))
        if is_marker:
            self.epochs[producer] = epoch + 1
            return _marker(at, producer, commit=kind == "commit", epoch=epoch)
        return _batch(at, count, producer, epoch)

    def stable(self, end: int) -> int:
        ended = {row[3:] for row in self.rows if row[0] in ("commit", "abort") and row[1] < end}
        opened = [row[1] for row in self.rows if row[0] == "batch" and row[3:] not in ended]
        return min([end, *opened])

    def hidden(self) -> BitMap64:
        aborted = {row[3:] for row in self.rows if row[0] == "abort"}
        found = BitMap64()
        for kind, begin, end, producer, epoch in self.rows:
            is_marker = kind in ("commit", "abort")
            if is_marker or (kind == "batch" and (producer, epoch) in aborted):
                found.add_range(begin, end)
        return found


@settings(max_examples=300, deadline=None)
@given(_steps, st.data())
def test_it_agrees_with_a_look_at_all_entries(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    naive, transactions, end = _Naive(), OpenTransactions(), 0
    for step in steps:
        entry = naive.add(*step)
        if entry is not None:
            transactions.record(entry)
        end = data.draw(st.integers(end, naive.next))
        assert transactions.stable_offset(Offset(end)) == naive.stable(end)
    assert transactions.hidden == naive.hidden()
    assert transactions.stable_offset(Offset(naive.next)) == naive.stable(naive.next)


@settings(max_examples=200, deadline=None)
@given(_steps, _steps)
def test_it_goes_on_from_a_snapshot_as_if_nothing_had_been(
    before: list[tuple[str, int, int]], after: list[tuple[str, int, int]]
) -> None:
    naive, transactions = _Naive(), OpenTransactions()
    for step in before:
        entry = naive.add(*step)
        if entry is not None:
            transactions.record(entry)
    restored = OpenTransactions(transactions.opened, transactions.hidden.copy())
    for step in after:
        entry = naive.add(*step)
        if entry is not None:
            restored.record(entry)
    assert restored.stable_offset(Offset(naive.next)) == naive.stable(naive.next)
    assert restored.hidden == naive.hidden()
