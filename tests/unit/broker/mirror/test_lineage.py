"""Which of two topics was copied from the other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from quiver.broker.mirror.lineage import aside_name, was_copied_from
from quiver.model.mirror.origin import Origin
from quiver.model.topic import TopicSettings, topic_name
from quiver.protocol import TopicInfo
from tests.unit.broker.mirror.mirror_doubles import topic_record

HERE, THERE = "here", "there"
RECORD = topic_record(number=7)
PROMOTED = TopicInfo(
    name="orders",
    number=3,
    layout=1,
    settings=TopicSettings(),
    created_us=0,
    partitions=[],
    promoted_from=Origin(mirror="eu", cluster=HERE, topic="orders", number=7),
    promotions=1,
)


def test_a_promoted_copy_was_copied_from_its_source() -> None:
    assert was_copied_from(PROMOTED, RECORD, HERE)


@pytest.mark.parametrize(
    "changes",
    [
        {"promoted_from": None},
        {"promoted_from": Origin(mirror="eu", cluster="other", topic="orders", number=7)},
        {"promoted_from": Origin(mirror="eu", cluster=HERE, topic="orders", number=8)},
        {"moved_to": "cluster other"},
        {"promotions": 0},
    ],
)
def test_other_topics_were_not(changes: dict[str, object]) -> None:
    assert not was_copied_from(replace(PROMOTED, **changes), RECORD, HERE)


def test_of_two_that_were_promoted_after_each_other_the_later_is_the_primary() -> None:
    later = replace(
        RECORD,
        promotions=2,
        promoted_from=Origin(mirror="us", cluster=THERE, topic="orders", number=3, promotions=1),
    )
    assert not was_copied_from(PROMOTED, later, HERE)


def test_a_copy_of_a_copy_knows_the_first_cluster() -> None:
    chain = Origin(mirror="b", cluster="between", topic="orders", number=5, through=[HERE])
    assert was_copied_from(replace(PROMOTED, promoted_from=chain), RECORD, HERE)


AT = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("taken", "name"),
    [
        ((), "orders.diverged-20231114-221320"),
        (("orders.diverged-20231114-221320",), "orders.diverged-20231114-221320-2"),
        (
            ("orders.diverged-20231114-221320", "orders.diverged-20231114-221320-2"),
            "orders.diverged-20231114-221320-3",
        ),
    ],
)
def test_the_topic_beside_it_has_a_name_of_its_own(taken: tuple[str, ...], name: str) -> None:
    assert aside_name("orders", AT, taken.__contains__) == name


def test_the_topic_beside_it_has_a_name_that_is_valid() -> None:
    assert topic_name(aside_name("x" * 200, 0, lambda _: False))
