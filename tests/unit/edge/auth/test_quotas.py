"""Quotas, wrong tokens and leases on virtual time."""

from __future__ import annotations

import pytest

from quiver.config import Quotas, Security
from quiver.edge.auth.authority import Authority
from quiver.edge.auth.caller import Caller
from quiver.edge.auth.principal import ANONYMOUS, INTERNAL, Principal
from quiver.edge.auth.quotas import Usage, Usages
from quiver.edge.auth.tokens import TokenStore
from quiver.edge.limits.failed_logins import BURST, PER_SECOND, FailedLogins
from quiver.edge.limits.lease_quota import LeaseQuota
from quiver.edge.limits.token_bucket import TokenBucket
from quiver.errors import QuotaExceeded
from quiver.testing.clock import ManualClock
from quiver.testing.memory_store import MemoryStore


class TestBucket:
    def test_it_holds_one_second_and_fills_with_time(self) -> None:
        bucket = TokenBucket(10, now=0.0)
        bucket.take(10, 0.0)
        assert bucket.debt_s(0.0) == 0
        bucket.take(5, 0.0)
        assert bucket.debt_s(0.0) == 0.5
        assert bucket.debt_s(0.5) == 0
        assert not bucket.is_full(1.0)
        assert bucket.is_full(60.0)
        assert bucket.take(11, 60.0) == pytest.approx(0.1), "no more than a second is saved"

    def test_time_that_goes_back_gives_nothing(self) -> None:
        bucket = TokenBucket(10, now=5.0)
        bucket.take(20, 5.0)
        assert bucket.debt_s(4.0) == 1.0


class TestRates:
    def test_a_caller_over_its_rate_rests_and_is_then_refused(self) -> None:
        usage = Usage(Quotas(requests_per_second=10), now=0.0)
        rests = [usage.admit(1, 0.0, patience_s=1.0) for _ in range(21)]
        assert rests[:10] == [0.0] * 10
        assert rests[10:20] == pytest.approx([n / 10 for n in range(1, 11)])
        with pytest.raises(QuotaExceeded) as refused:
            usage.admit(1, 0.0, patience_s=1.0)
        assert refused.value.details == {"quota": "requests", "retry_after_s": 0.1}
        assert refused.value.retryable
        usage.admit(1, 0.1001, patience_s=1.0)

    def test_over_a_minute_no_more_passes_than_the_rate(self) -> None:
        usage = Usage(Quotas(bytes_per_second=1000), now=0.0)
        passed = 0
        for step in range(60_000):
            try:
                usage.admit(50, step / 1000, patience_s=0.0)
                passed += 50
            except QuotaExceeded:
                pass
        assert 60_000 <= passed <= 61_100

    def test_a_request_larger_than_a_second_passes_and_is_paid_for(self) -> None:
        usage = Usage(Quotas(bytes_per_second=1000), now=0.0)
        assert usage.admit(5000, 0.0, patience_s=0.0) == pytest.approx(4.0)
        with pytest.raises(QuotaExceeded):
            usage.admit(1, 3.9, patience_s=0.0)
        usage.admit(1, 4.0, patience_s=0.0)

    def test_replies_count(self) -> None:
        usage = Usage(Quotas(bytes_per_second=1000), now=0.0)
        usage.sent(3000, 0.0)
        with pytest.raises(QuotaExceeded):
            usage.admit(1, 1.0, patience_s=0.0)


class TestCounts:
    def test_connections_are_refused_beyond_their_number(self) -> None:
        usage = Usage(Quotas(connections_max=2), now=0.0)
        usage.connect()
        usage.connect()
        with pytest.raises(QuotaExceeded, match="connections"):
            usage.connect()
        usage.disconnect()
        usage.connect()

    def test_a_receive_gets_what_there_is_room_for(self) -> None:
        usage = Usage(Quotas(inflight_messages_max=10), now=0.0)
        assert usage.room_for_messages(100, 0) == 10
        usage.leased.took(b"a", 7, deadline_us=50)
        assert usage.room_for_messages(100, 0) == 3
        usage.leased.took(b"b", 3, deadline_us=100)
        with pytest.raises(QuotaExceeded, match="inflight_messages"):
            usage.room_for_messages(1, 49)
        assert usage.room_for_messages(100, 50) == 7

    def test_topics_are_refused_beyond_their_number(self) -> None:
        usage = Usage(Quotas(topics_max=3), now=0.0)
        usage.require_room_for_topic(2)
        with pytest.raises(QuotaExceeded):
            usage.require_room_for_topic(3)


class TestUsages:
    def test_tokens_of_one_name_share_a_usage(self) -> None:
        usages = Usages(Quotas(requests_per_second=1))
        first, again, other = Principal("a", ()), Principal("a", ()), Principal("b", ())
        assert usages.of(first, 0, 0) is usages.of(again, 0, 0)
        assert usages.of(first, 0, 0) is not usages.of(other, 0, 0)
        assert usages.of(ANONYMOUS, 0, 0) is not None
        assert usages.of(INTERNAL, 0, 0) is None

    def test_without_quotas_nothing_is_counted(self) -> None:
        assert Usages(Quotas()).of(Principal("a", ()), 0, 0) is None

    def test_a_principal_may_have_quotas_of_its_own(self) -> None:
        special = {"big": Quotas(connections_max=2), "free": Quotas()}
        usages = Usages(Quotas(connections_max=1), special)
        for name, most in (("big", 2), ("anybody", 1)):
            usage = usages.of(Principal(name, ()), 0, 0)
            assert usage is not None
            assert usage.quotas.connections_max == most
        assert usages.of(Principal("free", ()), 0, 0) is None

    def test_how_many_are_remembered_is_bounded_and_who_is_busy_stays(self) -> None:
        usages = Usages(Quotas(connections_max=1), principals_max=2)
        busy = usages.of(Principal("busy", ()), 0, 0)
        assert busy is not None
        busy.connect()
        usages.of(Principal("idle", ()), 0, 0)
        with pytest.raises(QuotaExceeded, match="principals"):
            usages.of(Principal("new", ()), 0, 0)
        busy.disconnect()
        assert usages.of(Principal("new", ()), 0, 0) is not None
        assert len(usages._by_name) == 2


class TestLeased:
    def test_what_is_settled_or_lapsed_is_held_no_more(self) -> None:
        leased = LeaseQuota()
        leased.took(b"a", 5, 100)
        leased.settled(b"a", 2)
        leased.settled(b"unknown", 9)
        assert leased.count(99) == 3
        assert leased.count(100) == 0

    def test_an_extension_moves_the_deadline(self) -> None:
        leased = LeaseQuota()
        leased.took(b"a", 5, 100)
        leased.extended(b"a", 200)
        assert (leased.count(150), leased.count(200)) == (5, 0)

    def test_memory_does_not_grow_with_what_is_settled(self) -> None:
        leased = LeaseQuota()
        for number in range(10_000):
            leased.took(number.to_bytes(4), 1, 1 << 60)
            leased.settled(number.to_bytes(4), 1)
        assert leased.count(0) == 0
        assert len(leased._deadlines) < 2_000


class TestAttempts:
    def test_after_a_burst_of_wrong_tokens_an_address_is_told_to_wait(self) -> None:
        attempts = FailedLogins()
        for _ in range(BURST):
            assert attempts.failed("here", 0.0) is None
        refused = attempts.failed("here", 0.0)
        assert refused is not None
        assert refused.details["retry_after_s"] == pytest.approx(1 / PER_SECOND)
        assert attempts.is_over("here", 0.0)
        assert attempts.failed("elsewhere", 0.0) is None
        assert attempts.failed("here", 1 / PER_SECOND) is None

    def test_an_hour_of_guessing_is_answered_at_a_bounded_rate(self) -> None:
        attempts = FailedLogins()
        answered = sum(attempts.failed("here", step / 10) is None for step in range(36_000))
        assert 3600 * PER_SECOND <= answered + BURST <= 2 * BURST + 3600 * PER_SECOND

    def test_how_many_addresses_are_remembered_is_bounded(self) -> None:
        attempts = FailedLogins(addresses_max=10)
        for number in range(100):
            attempts.failed(str(number), 0.0)
        assert len(attempts._wrong) == 10


class TestTopics:
    @pytest.mark.parametrize(("topics_max", "asked"), [(0, 0), (3, 1)])
    def test_names_are_looked_at_only_if_there_is_a_quota(
        self, topics_max: int, asked: int
    ) -> None:
        clock, looks = ManualClock(), []
        authority = Authority(
            clock,
            tokens=TokenStore(MemoryStore(clock), clock),
            security=Security(authentication=True),
            quotas=Quotas(topics_max=topics_max),
        )
        caller = Caller(authority, clock, Principal("a", ()))
        caller.require_room_for_topic("t", lambda: looks.append(1) or {"other"})  # type: ignore[func-returns-value]
        assert len(looks) == asked
