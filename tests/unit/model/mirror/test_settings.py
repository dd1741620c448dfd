"""The settings of a mirror: what they cover, and what is refused."""

from __future__ import annotations

import pytest

from quiver.errors import InvalidSetting
from quiver.model.mirror.origin import Origin
from quiver.model.mirror.settings import MirrorSettings, copy_name

SOURCE = "quiver://eu:7401"


def test_patterns_cover_topics_but_never_internal_ones() -> None:
    settings = MirrorSettings(source=SOURCE, topics=["orders.*", "emails"])
    covered = [one for one in ("orders.eu", "orders", "emails", "x") if settings.covers(one)]
    assert covered == ["orders.eu", "emails"]
    assert not MirrorSettings(source=SOURCE, topics=["*"]).covers("__alerts")


def test_a_copy_may_have_another_name() -> None:
    assert copy_name("{cluster}.{topic}", "eu", "orders") == "eu.orders"


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": []},
        {"topics": ["a/b"]},
        {"rename": "same"},
        {"rename": "{cluster}/{topic}"},
        {"rename": "{cluster}.{topic}", "with_subscriptions": True},
        {"rate": 1},
    ],
)
def test_what_cannot_be_copied_is_refused(wrong: dict[str, object]) -> None:
    given: dict[str, object] = {"source": SOURCE, "topics": ["orders"], **wrong}
    with pytest.raises(InvalidSetting):
        MirrorSettings(**given)  # type: ignore[arg-type]


def test_a_rate_may_be_given_with_its_unit() -> None:
    assert MirrorSettings(source=SOURCE, topics=["a"], rate="50MB").rate_bytes == 50_000_000


def test_an_origin_knows_every_cluster_before() -> None:
    origin = Origin(mirror="m", cluster="b", topic="t", number=1, through=["a"])
    assert (origin.clusters, origin.hops) == (["a", "b"], 2)
