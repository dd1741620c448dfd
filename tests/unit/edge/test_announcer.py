"""Of several forwarders one is chosen for a subscription, and all agree on it."""

from __future__ import annotations

from collections import Counter

from quiver.client.transport.access import Access
from quiver.edge.announcer import Announcer, chosen
from quiver.edge.relay.upstream_nodes import UpstreamNodes
from quiver.model.clock import SystemClock
from quiver.protocol import Announce


def test_all_who_know_the_same_forwarders_agree_and_the_work_is_spread() -> None:
    instances = {"a", "b", "c"}
    responsible = {str(n): chosen(str(n), instances) for n in range(300)}
    assert responsible == {str(n): chosen(str(n), {"c", "b", "a"}) for n in range(300)}
    assert min(Counter(responsible.values()).values()) > 60


def test_when_one_is_gone_the_others_keep_what_they_have() -> None:
    before = {str(n): chosen(str(n), {"a", "b", "c"}) for n in range(300)}
    after = {str(n): chosen(str(n), {"a", "b"}) for n in range(300)}
    assert all(after[name] == one for name, one in before.items() if one != "c")


def announcer(instance: str, callers: dict[str, list[str]]) -> Announcer:
    """One that was told by nodes who is to call webhooks."""
    announce = Announce(name="edge", instance=instance)
    made = Announcer(lambda: announce, UpstreamNodes(["n:1"]), Access(), SystemClock())
    made._callers = callers
    return made


def test_exactly_one_forwarder_calls_the_webhook_of_a_subscription() -> None:
    told = {"n:1": ["a", "b"], "m:1": ["b", "c"]}
    forwarders = [announcer(instance, told) for instance in ("a", "b", "c")]
    for number in range(100):
        assert sum(one.calls_webhooks_of(str(number)) for one in forwarders) == 1


def test_a_forwarder_that_no_node_wants_to_call_webhooks_calls_none() -> None:
    assert not announcer("a", {"n:1": []}).calls_webhooks_of("emails")
    assert not announcer("a", {"n:1": ["b"]}).calls_webhooks_of("emails")
    assert not announcer("a", {}).calls_webhooks_of("emails")
