"""What may happen to a subscription, and how often: steps for the delivery machine and its model."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.unit.log.small_logs import SECOND_US

COLUMNS = ("key", "priority", "due", "expires", "passed")


class Published(NamedTuple):
    """A message as it is published; times are seconds from then on."""

    key: bytes | None
    priority: int
    due: int | None
    expires: int | None
    passed: bool


spans = st.integers(0, 12).map(lambda seconds: seconds * SECOND_US)
messages = st.builds(
    Published,
    key=st.sampled_from([None, b"", *[b"a"] * 5, *[b"b"] * 3, b"c", b"d", b"e"]),
    priority=st.integers(0, 9),
    due=st.sampled_from([None] * 12 + [0, 1, 2, 3, 5, 8, 12]),
    expires=st.sampled_from([None] * 12 + [0, 2, 4, 6, 8, 12, 30]),
    passed=st.sampled_from([True, True, True, True, False]),
)
column_sets = st.just(set(COLUMNS)) | st.sets(st.sampled_from(COLUMNS))
choices = st.lists(st.integers(0, 1000), min_size=1, max_size=8)
"""Which of the offsets that there are; some that there are not may be among them."""
some_or_all = st.none() | choices
leases = st.integers(0, 1000)
"""Which of the leases that were ever given; some are forged."""
transactions = st.integers(1, 3)
ACTIONS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "publish": (
        6,
        {"batch": st.lists(messages, min_size=2, max_size=10), "columns": column_sets},
    ),
    "receive": (
        6,
        {
            "limit": st.integers(0, 5) | st.just(100),
            "consumer": st.sampled_from(["ann", "bob"]),
            "visibility": st.sampled_from([None, None, None, 0, 4, 8]),
        },
    ),
    "ack": (4, {"lease": leases, "chosen": some_or_all}),
    "hold": (4, {"lease": leases, "chosen": some_or_all, "transaction": transactions}),
    "close": (2, {"transaction": transactions, "committed": st.booleans()}),
    "nack": (
        3,
        {
            "lease": leases,
            "chosen": some_or_all,
            "delay": st.none() | spans,
            "error": st.sampled_from([None, "", "no such customer"]),
        },
    ),
    "reject": (
        1,
        {
            "lease": leases,
            "chosen": some_or_all,
            "error": st.sampled_from([None, "", "no such customer"]),
        },
    ),
    "extend": (2, {"lease": leases, "chosen": some_or_all, "seconds": st.integers(-2, 8)}),
    "requeue": (1, {"lease": leases, "chosen": some_or_all}),
    "release": (1, {"consumer": st.sampled_from(["ann", "bob"])}),
    "reserve": (
        4,
        {
            "limit": st.integers(0, 5) | st.just(100),
            "consumer": st.sampled_from(["ann", "bob"]),
            "suspect": st.booleans(),
        },
    ),
    "start_reserved": (
        4,
        {"lease": leases, "chosen": some_or_all, "visibility": st.sampled_from([0, 3, 8, 20])},
    ),
    "unreserve": (2, {"lease": leases, "chosen": some_or_all}),
    "end_session": (2, {"lease": leases, "silent": st.booleans()}),
    "cut_sessions": (1, {"seconds": st.integers(0, 4), "shorten": st.booleans()}),
    "remove": (1, {"chosen": choices, "readable": st.booleans()}),
    "store_dead_letters": (2, {"chosen": some_or_all}),
    "time_passes": (5, {"seconds": st.integers(0, 4), "micros": st.integers(0, 1)}),
    "jump": (1, {"seconds": st.integers(-2, 30)}),
    "tick": (3, {"asleep": st.booleans()}),
    "seek": (1, {"share": st.sampled_from([0, 1, 2, 4, 7])}),
    "lose_beginning": (1, {"share": st.sampled_from([0, 1, 1, 2, 2, 3, 7, 8])}),
    "lose_end": (1, {"batches": st.integers(1, 2)}),
    "save": (1, {}),
    "restart": (
        2,
        {
            "choice": st.integers(0, 1000),
            "at_once": st.booleans(),
            "lost": st.sampled_from([0, 0, 0, 1]),
        },
    ),
}
"""What may happen, how often compared with the others, and in which ways."""
steps = st.sampled_from(
    [name for name, (weight, _) in ACTIONS.items() for _ in range(weight)]
).flatmap(lambda name: st.tuples(st.just(name), st.fixed_dictionaries(ACTIONS[name][1])))
