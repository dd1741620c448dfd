"""Where a replicated log begins: agreed among the replicas in sync before a reader sees it."""

from __future__ import annotations

from msgspec.structs import replace

from quiver.cluster.replica.epochs import EpochEnd
from quiver.cluster.replica.follower import BeginAnew, Cut, FollowedLog, Follower
from quiver.cluster.replica.leader import Leader, Serve
from quiver.cluster.replica.messages import Diverged, Fetch, Gone
from quiver.cluster.replica.progress import LogProgress
from tests.unit.cluster.replica.test_rules import (
    SESSIONS,
    B,
    C,
    P,
    epoch,
    fetch,
    history,
    leading,
    offset,
    record,
)


def told(leader: Leader, fetched: Fetch, start: int | None) -> None:
    """A follower says where its log begins."""
    begins = None if start is None else offset(start)
    assert leader.on_fetch(replace(fetched, start=begins), 0.1) == Serve()
    leader.advance(0.1)


def test_a_start_is_agreed_once_the_logs_of_all_in_sync_replicas_begin_there() -> None:
    leader = leading()
    leader.logs[0].start = offset(20)
    told(leader, fetch(B, 100), 20)
    assert leader.logs[0].agreed_start == 0
    told(leader, fetch(C, 100), 5)
    assert leader.logs[0].agreed_start == 5
    told(leader, fetch(C, 100), 30)
    assert leader.logs[0].agreed_start == 20


def test_a_start_is_not_agreed_while_too_few_replicas_are_in_sync() -> None:
    leader = leading(record(leading().node, min_in_sync=2))
    leader.logs[0].start = offset(20)
    leader.advance(0.1)
    assert leader.logs[0].agreed_start == 0


def test_a_replica_that_is_out_of_sync_is_not_waited_for_and_joins_only_with_the_start() -> None:
    leader = leading(record(leading().node, B))
    leader.logs[0].start = offset(20)
    told(leader, fetch(B, 100), 20)
    assert leader.logs[0].agreed_start == 20
    told(leader, fetch(C, 100), 5)
    assert leader.propose(0.1) is None
    told(leader, fetch(C, 100), 20)
    assert leader.propose(0.1) is not None


def test_a_follower_of_an_earlier_version_does_not_hold_up_a_start() -> None:
    leader = leading()
    leader.logs[0].start = offset(20)
    told(leader, fetch(B, 100), None)
    told(leader, fetch(C, 100), 20)
    assert leader.logs[0].agreed_start == 20


def test_a_new_leader_serves_readers_only_once_the_others_begin_where_it_does() -> None:
    leader = leading(start=20, watermark=100)
    assert not leader.logs[0].recovered
    told(leader, fetch(B, 100), 20)
    told(leader, fetch(C, 100), 7)
    assert not leader.logs[0].recovered
    told(leader, fetch(C, 100), 20)
    assert leader.logs[0].recovered


def progress(start: int, stored_from: int) -> LogProgress:
    return LogProgress(
        history((1, 0), (2, 60), (3, 100)),
        start=offset(start),
        end=offset(100),
        durable=offset(100),
        watermark=offset(50),
        stored_from=offset(stored_from),
    )


def test_a_follower_copies_from_the_first_stored_offset_also_where_that_is_excluded() -> None:
    leader = leading()
    leader.logs = [progress(start=45, stored_from=30)]
    assert leader.on_fetch(fetch(B, 30, last=1), 0.1) == Serve()
    gone = Gone(epoch=epoch(3), start=offset(30))
    assert leader.on_fetch(fetch(B, 29, last=1), 0.1) == gone


def following(start: int, stored_from: int) -> Follower:
    log = FollowedLog(
        history((2, 60)), offset(start), offset(80), offset(start), offset(stored_from)
    )
    return Follower(P, B, SESSIONS[B], record(), [log])


def test_a_follower_tells_where_its_log_begins() -> None:
    assert following(start=70, stored_from=60).fetch(0, offset(80)).start == 70


def test_a_log_is_never_cut_before_its_start() -> None:
    reply = Diverged(epoch=epoch(3), end=EpochEnd(epoch(1), offset(65)))
    excluded = following(start=70, stored_from=60)
    step = excluded.on_reply(0, excluded.fetch(0, offset(80)), reply)
    assert step == BeginAnew(offset(0)), "the cut would be inside what is excluded"
    whole = following(start=60, stored_from=60)
    assert whole.on_reply(0, whole.fetch(0, offset(80)), reply) == Cut(offset(60))
