"""Limits of a whole topic, divided among its partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.broker.topic_limits import even_shares


@pytest.mark.parametrize(
    ("limit", "amounts", "shares"),
    [
        (None, [5, 5], [None, None]),
        (10, [5, 5], [None, None]),
        (10, [8, 8], [5, 5]),
        (10, [2, 50, 50], [None, 4, 4]),
        (10, [50, 0, 3], [7, None, None]),
        (11, [20, 20], [5, 6]),
        (1, [9, 9, 9], [0, 0, 1]),
    ],
)
def test_the_larger_partitions_give_until_all_together_keep_the_limit(
    limit: int | None, amounts: list[int], shares: list[int | None]
) -> None:
    assert even_shares(limit, amounts) == shares


@given(st.integers(1, 300), st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_together_they_keep_exactly_the_limit_and_nobody_below_an_even_share_loses(
    limit: int, amounts: list[int]
) -> None:
    shares = even_shares(limit, amounts)
    kept = [
        amount if share is None else share for amount, share in zip(amounts, shares, strict=True)
    ]
    assert sum(kept) == min(limit, sum(amounts))
    assert all(share <= amount for share, amount in zip(kept, amounts, strict=True))
    cut = [share for share in shares if share is not None]
    assert not cut or max(cut) - min(cut) <= 1, "those that give keep the same amount"
    assert not cut or all(share <= min(cut) + 1 for share in kept)
    assert even_shares(limit, kept) == [None] * len(kept), "nothing goes twice"
