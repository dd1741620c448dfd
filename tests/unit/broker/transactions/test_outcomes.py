"""Outcomes of transactions: kept for an hour, in little memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.broker.transactions.outcomes import KEPT_US, WINDOW_US, OutcomeHistory, arranged
from quiver.broker.transactions.records import Outcome
from quiver.model.ids import Microseconds, ProducerEpoch, ProducerId
from quiver.model.transaction import EPOCHS_MAX, transaction_id

PRODUCERS = st.integers(1, (1 << 43) - 1).map(ProducerId)
EPOCHS = st.integers(0, EPOCHS_MAX - 1).map(ProducerEpoch)


@given(st.sets(st.tuples(PRODUCERS, EPOCHS), max_size=50))
def test_arranged_ids_are_as_different_as_ids(pairs: set[tuple[ProducerId, ProducerEpoch]]) -> None:
    ids = {arranged(transaction_id(*pair)) for pair in pairs}
    assert len(ids) == len(pairs)
    assert all(0 <= one < 1 << 63 for one in ids)


@given(
    st.dictionaries(st.tuples(PRODUCERS, EPOCHS), st.sampled_from(Outcome), max_size=20),
    st.integers(0, 3 * KEPT_US),
)
def test_every_outcome_is_found_again(
    decided: dict[tuple[ProducerId, ProducerEpoch], Outcome], time_us: int
) -> None:
    history = OutcomeHistory()
    for pair, outcome in decided.items():
        history.add(transaction_id(*pair), outcome, Microseconds(time_us))
    restored = OutcomeHistory.restored(history.saved())
    for pair, outcome in decided.items():
        assert history.of(transaction_id(*pair)) is outcome
        assert restored.of(transaction_id(*pair)) is outcome


def test_a_time_that_goes_back_loses_nothing() -> None:
    history = OutcomeHistory()
    one, other = (transaction_id(ProducerId(9), ProducerEpoch(epoch)) for epoch in (0, 1))
    history.add(one, Outcome.COMMITTED, Microseconds(10 * WINDOW_US))
    history.add(other, Outcome.ABORTED, Microseconds(0))
    assert (history.of(one), history.of(other)) == (Outcome.COMMITTED, Outcome.ABORTED)


def test_a_checkpoint_without_room_for_all_has_the_newest() -> None:
    history = OutcomeHistory()
    ids = [transaction_id(ProducerId(9), ProducerEpoch(epoch)) for epoch in range(3)]
    for number, one in enumerate(ids):
        history.add(one, Outcome.COMMITTED, Microseconds(number * WINDOW_US))
    one_window = history.saved()[0].size
    restored = OutcomeHistory.restored(history.saved(2 * one_window))
    assert [restored.of(one) for one in ids] == [None, Outcome.COMMITTED, Outcome.COMMITTED]
    assert len(history.saved(0)) == 1


@pytest.mark.parametrize(
    ("producers", "epochs", "bytes_max"),
    [(50, 60_000, 4 << 20), (3_000_000, 1, 8 << 20)],
    ids=["few producers with many each", "many producers with one each"],
)
def test_ten_minutes_of_5000_a_second_take_little_memory(
    producers: int, epochs: int, bytes_max: int
) -> None:
    history = OutcomeHistory()
    history.add(transaction_id(ProducerId(1), ProducerEpoch(0)), Outcome.COMMITTED, Microseconds(0))
    ids = [
        arranged(transaction_id(ProducerId(1 + producer), ProducerEpoch(epoch)))
        for producer in range(producers)
        for epoch in range(epochs)
    ]
    history._windows[0].outcomes[Outcome.COMMITTED].update(np.array(ids, np.uint64))
    history.add(
        transaction_id(ProducerId(1), ProducerEpoch(epochs)),
        Outcome.COMMITTED,
        Microseconds(WINDOW_US),
    )
    (first, _) = history.saved()
    assert len(first.outcomes[Outcome.COMMITTED]) <= bytes_max
