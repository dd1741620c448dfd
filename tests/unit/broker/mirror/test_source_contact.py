"""Whether a mirror's source answers: what passes by itself, and what somebody has to look at."""

from __future__ import annotations

from quiver.broker.mirror.source_contact import UNREACHED_S, SourceContact
from quiver.errors import ConnectionLost, QuotaExceeded, Unauthenticated
from quiver.testing.clock import ManualClock
from tests.aio import async_test


@async_test
async def test_a_source_that_never_answered_is_broken_after_a_while() -> None:
    clock = ManualClock()
    contact = SourceContact("eu", clock)
    contact.failed(ConnectionLost("nobody is there"))
    await clock.advance(UNREACHED_S)
    assert not contact.is_broken
    await clock.advance(1)
    assert contact.is_broken
    assert contact.error == "nobody is there"
    contact.answered("c1")
    assert (contact.is_broken, contact.cluster, contact.error) == (False, "c1", "")


@async_test
async def test_a_source_that_is_lost_later_is_waited_for() -> None:
    clock = ManualClock()
    contact = SourceContact("eu", clock)
    contact.answered("c1")
    contact.failed(ConnectionLost())
    await clock.advance(100 * UNREACHED_S)
    assert not contact.is_broken


@async_test
async def test_a_source_that_refuses_is_broken_until_it_answers() -> None:
    contact = SourceContact("eu", ManualClock())
    contact.answered("c1")
    contact.failed(Unauthenticated())
    contact.failed(QuotaExceeded("too many wrong tokens"))
    assert contact.sample().is_broken
    contact.answered("c1")
    assert not contact.sample().is_broken
