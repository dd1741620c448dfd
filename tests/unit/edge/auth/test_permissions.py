"""Grants and needs: what a pattern covers, what each call needs, and that nothing else is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver import protocol
from quiver.edge.auth.call_permissions import Definitions, Needs, topic
from quiver.edge.auth.permissions import (
    EVERYTHING,
    GRANTS_MAX,
    Grant,
    Need,
    Permission,
    ResourceKind,
    parse_grant,
    parse_grants,
)
from quiver.edge.auth.principal import ANONYMOUS, DECISIONS_MAX, Principal
from quiver.edge.calls.table import CALLS
from quiver.errors import InvalidSetting
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings

NAMES = st.text("ab.", min_size=1, max_size=6)
PATTERNS = st.text("ab.*", min_size=1, max_size=6)


def required(request: protocol.AnyRequest, *, is_queue: bool = False) -> Needs:
    return CALLS[type(request)].needs(request, Definitions(is_queue=lambda _: is_queue))


def allowed(request: protocol.AnyRequest, *grants: str, is_queue: bool = False) -> bool:
    principal = Principal("p", parse_grants(list(grants)))
    return all(principal.may(need) for need in required(request, is_queue=is_queue))


class TestGrants:
    @pytest.mark.parametrize(
        "text", ["publish:orders.*", "consume:queue:emails", "admin:cluster:*"]
    )
    def test_a_grant_is_written_as_it_was_read(self, text: str) -> None:
        assert str(parse_grant(text)) == text

    @pytest.mark.parametrize(
        "text",
        [
            *("", "publish", "publish:", "write:a", "publish:table:a", "publish:topic:queue:a"),
            *("admin:a b", "publish:" + "a" * 201, "publish:[ab]", "publish:a?", "PUBLISH:a"),
            " publish:a",
        ],
    )
    def test_what_is_no_grant_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidSetting, match="not a grant"):
            parse_grant(text)

    @pytest.mark.parametrize("count", [0, GRANTS_MAX + 1])
    def test_there_are_neither_none_nor_too_many(self, count: int) -> None:
        with pytest.raises(InvalidSetting):
            parse_grants([f"publish:t{number}" for number in range(count)])

    @pytest.mark.parametrize(
        ("grant", "need", "covered"),
        [
            ("publish:orders", Need((Permission.PUBLISH,), ResourceKind.TOPIC, "orders"), True),
            ("publish:orders", Need((Permission.PUBLISH,), ResourceKind.TOPIC, "orders2"), False),
            ("publish:orders", Need((Permission.CONSUME,), ResourceKind.TOPIC, "orders"), False),
            ("admin:*", Need((Permission.PUBLISH,), ResourceKind.TOPIC, "orders"), False),
            ("publish:a.*", Need((Permission.PUBLISH,), ResourceKind.TOPIC, "a.b.c"), True),
            ("publish:a.*", Need((Permission.PUBLISH,), ResourceKind.TOPIC, "a"), False),
            ("consume:topic:a", Need((Permission.CONSUME,), ResourceKind.SUBSCRIPTION, "a"), False),
            ("consume:queue:a", Need((Permission.CONSUME,), ResourceKind.SUBSCRIPTION, "a"), True),
            ("consume:queue:a", Need((Permission.CONSUME,), ResourceKind.TOPIC, "a"), True),
            ("admin:queue:*", Need((Permission.ADMIN,), ResourceKind.CLUSTER, "*"), False),
            ("admin:topic:*", Need((Permission.ADMIN,), ResourceKind.CLUSTER, "*"), False),
            ("admin:*", Need((Permission.ADMIN,), ResourceKind.CLUSTER, "*"), True),
            ("admin:a*", Need((Permission.ADMIN,), ResourceKind.CLUSTER, "*"), False),
        ],
    )
    def test_a_grant_covers_its_own_permission_kind_and_names(
        self, grant: str, need: Need, covered: bool
    ) -> None:
        assert parse_grant(grant).covers(need) is covered

    @given(PATTERNS, PATTERNS, NAMES)
    def test_a_grant_that_covers_a_pattern_covers_all_that_the_pattern_matches(
        self, pattern: str, wanted: str, name: str
    ) -> None:
        grant = Grant(Permission.CONSUME, None, pattern)
        wanted_grant = Grant(Permission.CONSUME, None, wanted)
        if grant.covers(topic((Permission.CONSUME,), wanted)) and wanted_grant.covers(
            topic((Permission.CONSUME,), name)
        ):
            assert grant.covers(topic((Permission.CONSUME,), name))

    def test_a_grant_of_everything_is_not_one_of_quivers_own_names(self) -> None:
        own = topic((Permission.CONSUME,), "__state")
        assert not parse_grant("consume:*").covers(own)
        assert parse_grant("consume:__*").covers(own)

    def test_many_stars_take_no_time(self) -> None:
        grant = parse_grant("publish:" + "a*" * 99 + "c")
        assert not grant.covers(topic((Permission.PUBLISH,), "a" * 199 + "b"))


class TestPrincipal:
    def test_nothing_is_allowed_without_a_grant(self) -> None:
        need = topic((Permission.PUBLISH,), "a")
        assert not Principal("p", ()).may(need)
        assert ANONYMOUS.may(need)

    def test_decisions_are_remembered_within_a_bound(self) -> None:
        principal = Principal("p", EVERYTHING)
        for number in range(2 * DECISIONS_MAX + 1):
            assert principal.may(topic((Permission.PUBLISH,), str(number)))
            assert len(principal._decisions) <= DECISIONS_MAX

    def test_it_is_over_when_it_expires_or_ends(self) -> None:
        principal = Principal("p", (), expires_us=10)
        assert [principal.is_over(now) for now in (9, 10, 11)] == [False, True, True]
        other = Principal("p", ())
        assert not other.is_over(1 << 60)
        other.end()
        assert other.is_over(0)


class TestRules:
    def test_a_call_is_decided_once_for_a_name_only_if_nothing_else_matters(self) -> None:
        subjects = {row.request: row.subject for row in CALLS.values() if row.subject}
        assert len(subjects) == 14
        for call, subject in subjects.items():
            fields = dict.fromkeys(("topic", "name", "subscription"), "n")
            known = {k: v for k, v in fields.items() if k in call.__struct_fields__}
            needed = {"partition": 0, "offset": 0, "settlements": [], "visibility_ms": 0}
            needed["transaction"] = 1
            rest = {k: v for k, v in needed.items() if k in call.__struct_fields__}
            request = call(**known, **rest)
            (need,) = required(request)
            assert need.name == subject(request) == "n"

    def test_every_call_that_needs_admin_is_in_the_audit_log(self) -> None:
        one = {"name": "n", "settings": TopicSettings(), "changes": {}, "topic": TopicSettings()}
        one |= {"grants": [], "token_id": "", "subscription": {}}
        for call, row in CALLS.items():
            if call in (protocol.ListTokens, protocol.ExportTokens, protocol.CreateSubscription):
                continue
            fields = {k: v for k, v in one.items() if k in call.__struct_fields__}
            try:
                needs = required(call(**fields))
            except TypeError:
                continue  # it has other fields: those calls are not about a thing's settings
            needs_admin = any(need.permissions == (Permission.ADMIN,) for need in needs)
            assert needs_admin == row.is_audited, call

    def test_a_subscription_reads_only_what_its_maker_may_consume(self) -> None:
        def request(*topics: str, dead_letter: str | None = None) -> protocol.CreateSubscription:
            settings = SubscriptionSettings(topics=list(topics), dead_letter=dead_letter)
            return protocol.CreateSubscription(name="mine.s", settings=settings)

        mine = ("admin:mine.*", "consume:mine.*", "publish:mine.*")
        assert allowed(request("mine.a", "mine.b*"), *mine)
        assert not allowed(request("mine.a", "yours.a"), *mine)
        assert not allowed(request("*"), *mine)
        assert not allowed(request("min*"), *mine)
        assert allowed(request("mine.a", dead_letter="mine.dead"), *mine)
        assert not allowed(request("mine.a", dead_letter="yours.dead"), *mine)
        assert not allowed(request("mine.a"), "consume:mine.*")

    @pytest.mark.parametrize(
        "changes", [{"topics": ["yours"]}, {"topics": "yours"}, {"topics": [1]}]
    )
    def test_altering_does_not_reach_further_than_creating(
        self, changes: dict[str, object]
    ) -> None:
        request = protocol.AlterSubscription(name="mine.s", changes=changes)
        assert not allowed(request, "admin:mine.*", "consume:mine.*", "publish:mine.*")
        queue = protocol.CreateQueue(name="mine.q", topic=TopicSettings(), subscription=changes)
        assert not allowed(queue, "admin:mine.*", "consume:mine.*", "publish:mine.*")

    def test_a_producers_name_is_for_those_who_publish(self) -> None:
        assert allowed(protocol.OpenProducer(), "consume:a")
        assert not allowed(protocol.OpenProducer(name="n"), "consume:*")
        assert not allowed(protocol.OpenProducer(name="n", topic="a"), "consume:*")
        assert allowed(protocol.OpenProducer(name="n", topic="a"), "publish:a")

    def test_dead_letters_are_sent_on_only_where_one_may_publish(self) -> None:
        assert allowed(protocol.Redrive(subscription="s"), "admin:s")
        assert not allowed(protocol.Redrive(subscription="s", to="t"), "admin:s")
        assert not allowed(protocol.Redrive(subscription="s", to="t"), "admin:s", "publish:t")
        needed = ("admin:s", "consume:s", "publish:t")
        assert allowed(protocol.Redrive(subscription="s", to="t"), *needed)

    def test_a_scheduled_message_is_cancelled_by_who_publishes_or_administers(self) -> None:
        request = protocol.Cancel(topic="t", ids=[])
        assert allowed(request, "publish:t")
        assert allowed(request, "admin:t")
        assert not allowed(request, "consume:t")

    def test_deleting_a_queue_needs_its_topic_too(self) -> None:
        request = protocol.DeleteSubscription(name="q")
        assert allowed(request, "admin:subscription:q")
        assert not allowed(request, "admin:subscription:q", is_queue=True)
        assert allowed(request, "admin:queue:q", is_queue=True)
