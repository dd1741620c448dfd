"""Of several forwarders one is chosen for a subscription, and all agree on it."""

from __future__ import annotations

from collections import Counter

from quiver.edge.announcer import chosen


def test_all_who_know_the_same_forwarders_agree_and_the_work_is_spread() -> None:
    instances = {"a", "b", "c"}
    responsible = {str(n): chosen(str(n), instances) for n in range(300)}
    assert responsible == {str(n): chosen(str(n), {"c", "b", "a"}) for n in range(300)}
    assert min(Counter(responsible.values()).values()) > 60


def test_when_one_is_gone_the_others_keep_what_they_have() -> None:
    before = {str(n): chosen(str(n), {"a", "b", "c"}) for n in range(300)}
    after = {str(n): chosen(str(n), {"a", "b"}) for n in range(300)}
    assert all(after[name] == one for name, one in before.items() if one != "c")
