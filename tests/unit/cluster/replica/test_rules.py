"""The rules of replication, each by itself: what a leader and its followers may and may not do."""

from __future__ import annotations

import math

import msgspec
import pytest

from quiver.cluster.records import (
    NodeId,
    PartitionId,
    PartitionRecord,
    SessionId,
    VersionedPartition,
)
from quiver.cluster.replica.epochs import NO_EPOCH, EpochEnd, EpochHistory, EpochStart
from quiver.cluster.replica.follower import (
    Append,
    Ask,
    BeginAnew,
    Cut,
    Drop,
    FollowedLog,
    Follower,
    Pause,
    epoch_starts,
)
from quiver.cluster.replica.leader import Leader, LeaderSettings, Serve
from quiver.cluster.replica.messages import Diverged, Entries, Fetch, Gone, NotLeading
from quiver.cluster.replica.progress import LogProgress
from quiver.errors import CorruptLog
from quiver.model.envelope import seal_batch, store_batch
from quiver.model.ids import LeaderEpoch, Microseconds, Offset
from quiver.model.schema import PAYLOAD

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
SESSIONS = {A: SessionId(1), B: SessionId(2), C: SessionId(3)}
P = PartitionId("t/0")
LAG = LeaderSettings().lag_seconds_max


def epoch(number: int) -> LeaderEpoch:
    return LeaderEpoch(number)


def offset(number: int) -> Offset:
    return Offset(number)


def history(*starts: tuple[int, int]) -> EpochHistory:
    return EpochHistory(EpochStart(epoch(one), offset(at)) for one, at in starts)


def record(*in_sync: NodeId, min_in_sync: int = 2, number: int = 3) -> PartitionRecord:
    return PartitionRecord(
        replicas=(A, B, C),
        leader=A,
        session=SESSIONS[A],
        epoch=epoch(number),
        in_sync=in_sync or (A, B, C),
        min_in_sync=min_in_sync,
    )


def leading(
    in_sync: PartitionRecord | None = None,
    *,
    starts: EpochHistory | None = None,
    start: int = 0,
    end: int = 100,
    durable: int | None = None,
    watermark: int = 50,
    logs: int = 1,
    lease_until: float = 10.0,
) -> Leader:
    """A leader in epoch 3, which began at ``end``, at time 0."""
    progress = [
        LogProgress(
            starts or history((1, 0), (2, 60), (3, end)),
            start=offset(start),
            end=offset(end),
            durable=offset(end if durable is None else durable),
            watermark=offset(watermark),
        )
        for _ in range(logs)
    ]
    leader = Leader(A, VersionedPartition(in_sync or record(), 7), progress, 0.0, LeaderSettings())
    leader.on_sessions(SESSIONS)
    leader.lease_until = lease_until
    return leader


def fetch(
    node: NodeId,
    at: int,
    *,
    last: int = 2,
    synced: int | None = None,
    number: int = 3,
    session: SessionId | None = None,
    log: int = 0,
    watermark: int = 0,
    wait_s: float = 0.5,
) -> Fetch:
    return Fetch(
        partition=P,
        log=log,
        node=node,
        session=SESSIONS[node] if session is None else session,
        epoch=epoch(number),
        offset=offset(at),
        last_epoch=epoch(last),
        synced=offset(at if synced is None else synced),
        watermark=offset(watermark),
        wait_s=wait_s,
    )


def grow(leader: Leader, end: int, durable: int | None = None) -> None:
    leader.logs[0].end = offset(end)
    leader.logs[0].durable = offset(end if durable is None else durable)


class TestCut:
    """A log whose end was dropped when this epoch began, at 60."""

    def test_it_is_agreed_once_everybody_in_sync_was_compared(self) -> None:
        leader = leading(end=60, watermark=60)
        assert not leader.is_agreed(offset(60), 0)
        leader.on_fetch(fetch(B, 60, last=1), 0.1)
        assert isinstance(leader.on_fetch(fetch(C, 100), 0.1), Diverged)
        assert not leader.is_agreed(offset(60), 0)
        leader.on_fetch(fetch(C, 60, last=1), 0.2)
        assert leader.is_agreed(offset(60), 0)

    def test_a_log_that_has_more_is_not_agreed(self) -> None:
        leader = leading(record(A, min_in_sync=1), end=61, watermark=61)
        assert not leader.is_agreed(offset(60), 0)
        assert leader.is_agreed(offset(61), 0)

    def test_nothing_is_agreed_while_too_few_are_in_sync(self) -> None:
        leader = leading(record(A), end=60, watermark=60)
        assert not leader.is_agreed(offset(60), 0)


class TestWatermark:
    def test_it_moves_to_where_every_in_sync_replica_is(self) -> None:
        leader = leading()
        leader.on_fetch(fetch(B, 100), 0.1)
        assert not leader.advance(0.1)
        leader.on_fetch(fetch(C, 80), 0.1)
        assert leader.advance(0.1)
        assert leader.logs[0].watermark == 80

    def test_only_synced_offsets_of_a_follower_count(self) -> None:
        leader = leading(record(A, B))
        leader.on_fetch(fetch(B, 100, synced=70), 0.1)
        leader.advance(0.1)
        assert leader.logs[0].watermark == 70

    def test_only_synced_offsets_of_the_leader_count(self) -> None:
        leader = leading(record(A, B))
        grow(leader, 120, durable=110)
        leader.on_fetch(fetch(B, 120, last=3), 0.1)
        leader.advance(0.1)
        assert leader.logs[0].watermark == 110

    def test_what_followers_have_and_the_leader_is_still_syncing_is_not_committed(self) -> None:
        leader = leading()
        grow(leader, 120, durable=100)
        for node in (B, C):
            leader.on_fetch(fetch(node, 120, last=3), 0.1)
        leader.advance(0.1)
        assert leader.logs[0].watermark == 100
        leader.logs[0].durable = offset(120)
        assert leader.advance(0.2)
        assert leader.logs[0].watermark == 120

    def test_it_never_goes_back(self) -> None:
        leader = leading(record(A, B), watermark=90)
        leader.on_fetch(fetch(B, 60, last=1), 0.1)
        leader.advance(0.1)
        assert leader.logs[0].watermark == 90

    def test_a_late_fetch_does_not_take_back_what_a_follower_has(self) -> None:
        leader = leading(record(A, B))
        leader.on_fetch(fetch(B, 100), 0.1)
        leader.on_fetch(fetch(B, 80), 0.2)
        leader.advance(0.2)
        assert leader.logs[0].watermark == 100

    def test_it_stands_while_fewer_are_in_sync_than_the_topic_asks_for(self) -> None:
        leader = leading(record(A, min_in_sync=2))
        assert not leader.enough_in_sync()
        assert not leader.advance(0.1)

    def test_it_stands_until_every_in_sync_follower_was_heard_in_this_epoch(self) -> None:
        leader = leading()
        leader.on_fetch(fetch(B, 100), 0.1)
        assert not leader.advance(0.1)

    def test_it_stands_for_a_deposed_leader(self) -> None:
        leader = leading(record(A, B))
        leader.on_fetch(fetch(B, 100), 0.1)
        leader.deposed = True
        assert not leader.advance(0.1)

    def test_a_leader_alone_needs_its_lease(self) -> None:
        leader = leading(record(A, min_in_sync=1), lease_until=5.0)
        assert not leader.advance(5.0)
        assert leader.advance(4.9)

    def test_followers_that_fetch_prove_the_epoch_without_a_lease(self) -> None:
        leader = leading(record(A, B), lease_until=0.0)
        leader.on_fetch(fetch(B, 100), 20.0)
        assert leader.advance(20.0)

    def test_it_is_told_only_once_all_of_earlier_epochs_is_committed(self) -> None:
        leader = leading(record(A, B))
        assert not leader.logs[0].recovered
        leader.on_fetch(fetch(B, 99), 0.1)
        leader.advance(0.1)
        assert not leader.logs[0].recovered
        leader.on_fetch(fetch(B, 100), 0.2)
        leader.advance(0.2)
        assert leader.logs[0].recovered


class TestEpochs:
    def test_a_fetch_of_an_older_epoch_is_refused(self) -> None:
        leader = leading()
        assert leader.on_fetch(fetch(B, 100, number=2), 0.1) == NotLeading(epoch=epoch(3))
        assert leader.logs[0].synced(B) is None

    def test_a_fetch_of_a_newer_epoch_deposes_the_leader(self) -> None:
        leader = leading()
        assert isinstance(leader.on_fetch(fetch(B, 100, number=4), 0.1), NotLeading)
        assert leader.deposed

    def test_a_node_that_is_no_replica_is_refused(self) -> None:
        leader = leading()
        stranger = NodeId("d")
        leader.on_sessions({**SESSIONS, stranger: SessionId(9)})
        asked = msgspec.structs.replace(fetch(B, 100), node=stranger, session=SessionId(9))
        assert isinstance(leader.on_fetch(asked, 0.1), NotLeading)

    def test_a_process_that_is_not_registered_is_refused(self) -> None:
        leader = leading()
        assert isinstance(leader.on_fetch(fetch(B, 100, session=SessionId(99)), 0.1), NotLeading)

    def test_a_record_with_another_epoch_deposes(self) -> None:
        leader = leading()
        leader.on_record(VersionedPartition(record(number=4), 8))
        assert leader.deposed

    def test_a_record_with_another_session_of_the_same_node_deposes(self) -> None:
        leader = leading()
        other = msgspec.structs.replace(record(), session=SessionId(77))
        leader.on_record(VersionedPartition(other, 8))
        assert leader.deposed

    def test_an_old_record_that_comes_late_changes_nothing(self) -> None:
        leader = leading()
        leader.on_record(VersionedPartition(record(number=2), 6))
        assert not leader.deposed


class TestTruncation:
    @pytest.mark.parametrize(
        ("at", "last", "agreed"),
        [
            (80, 1, EpochEnd(epoch(1), offset(60))),  # its epoch 1 is longer than ours
            (100, 1, EpochEnd(epoch(1), offset(60))),
            (120, 2, EpochEnd(epoch(2), offset(100))),  # its epoch 2 is longer than ours
            (50, 4, EpochEnd(epoch(3), offset(100))),  # an epoch we never had
        ],
    )
    def test_a_log_that_is_not_a_part_of_the_leaders_is_told_where_epochs_end(
        self, at: int, last: int, agreed: EpochEnd
    ) -> None:
        leader = leading()
        assert leader.on_fetch(fetch(B, at, last=last), 0.1) == Diverged(epoch=epoch(3), end=agreed)

    @pytest.mark.parametrize(("at", "last"), [(60, 1), (30, 1), (61, 2), (100, 2), (0, 0)])
    def test_a_log_that_is_a_part_of_the_leaders_is_served(self, at: int, last: int) -> None:
        assert leading().on_fetch(fetch(B, at, last=last), 0.1) == Serve()

    def test_a_log_that_differs_counts_for_nothing(self) -> None:
        leader = leading(record(A, B))
        leader.on_fetch(fetch(B, 120), 0.1)
        assert leader.logs[0].synced(B) is None
        assert not leader.advance(0.1)

    def test_a_follower_that_is_ahead_in_the_same_epoch_is_cut_and_not_counted(self) -> None:
        leader = leading(record(A, B))
        grow(leader, 110)
        ahead = fetch(B, 120, last=3)
        told = Diverged(epoch=epoch(3), end=EpochEnd(epoch(3), offset(110)))
        assert leader.on_fetch(ahead, 0.1) == told
        assert not leader.advance(0.1)

    def test_what_only_followers_of_a_former_epoch_had_synced_is_cut(self) -> None:
        """The leader of epoch 2 lost power before its own sync, and was elected again."""
        leader = leading(starts=history((1, 0), (2, 60), (3, 80)), end=80, watermark=70)
        told = Diverged(epoch=epoch(3), end=EpochEnd(epoch(2), offset(80)))
        assert leader.on_fetch(fetch(B, 100, last=2), 0.1) == told

    def test_what_retention_has_dropped_is_told(self) -> None:
        leader = leading(start=40)
        assert leader.on_fetch(fetch(B, 30, last=1), 0.1) == Gone(epoch=epoch(3), start=offset(40))

    def test_an_empty_log_may_begin_anywhere_in_the_leaders(self) -> None:
        assert leading(start=40).on_fetch(fetch(B, 40, last=0), 0.1) == Serve()


class TestInSyncSet:
    def test_a_follower_that_falls_behind_for_too_long_is_proposed_to_leave(self) -> None:
        leader = leading()
        leader.on_fetch(fetch(B, 100), LAG)
        proposal = leader.propose(LAG + 0.1)
        assert proposal is not None
        assert (proposal.record.in_sync, proposal.revision) == ((A, B), 7)

    def test_a_follower_that_always_has_what_it_was_told_of_stays(self) -> None:
        leader = leading(record(A, B))
        now = 0.0
        for end in range(100, 200, 10):
            grow(leader, end + 10)
            now += LAG / 2
            leader.on_fetch(fetch(B, end, last=2 if end == 100 else 3), now)
            assert leader.propose(now) is None

    def test_one_that_asks_but_does_not_catch_up_leaves(self) -> None:
        leader = leading(record(A, B))
        for step in range(1, 9):
            leader.on_fetch(fetch(B, 60 + step), step * LAG / 4)
        assert leader.propose(2 * LAG) is not None

    def test_being_at_the_watermark_is_not_enough_to_join(self) -> None:
        leader = leading(record(A, B), watermark=50)
        leader.on_fetch(fetch(C, 90), 0.1)
        assert leader.propose(0.1) is None

    def test_one_that_has_caught_up_inside_the_epoch_is_proposed_to_join(self) -> None:
        leader = leading(record(A, B), watermark=50)
        leader.on_fetch(fetch(C, 100), 0.1)
        proposal = leader.propose(0.1)
        assert proposal is not None
        assert proposal.record.in_sync == (A, B, C)
        assert [node for node, _ in proposal.joined] == [C]

    def test_a_proposal_is_given_up_when_the_process_that_caught_up_has_ended(self) -> None:
        leader = leading(record(A, B), watermark=50)
        leader.on_fetch(fetch(C, 100), 0.1)
        proposal = leader.propose(0.1)
        assert proposal is not None
        leader.abandon(proposal, C)
        assert leader.pending is None
        assert leader.propose(0.1) is None, "it has to catch up again"

    def test_what_is_not_synced_does_not_count_as_caught_up(self) -> None:
        leader = leading(record(A, B))
        leader.on_fetch(fetch(C, 100, synced=99), 0.1)
        assert leader.propose(0.1) is None

    def test_with_two_logs_both_must_have_caught_up(self) -> None:
        leader = leading(record(A, B), logs=2)
        leader.on_fetch(fetch(C, 100), 0.1)
        assert leader.propose(0.1) is None
        leader.on_fetch(fetch(C, 100, log=1), 0.1)
        assert leader.propose(0.1) is not None

    def test_with_two_logs_falling_behind_in_one_is_enough_to_leave(self) -> None:
        leader = leading(record(A, B), logs=2)
        leader.on_fetch(fetch(B, 100), 2 * LAG)
        assert leader.propose(2 * LAG) is not None

    def test_one_that_may_already_be_in_sync_is_waited_for(self) -> None:
        leader = leading(record(A, B))
        leader.on_fetch(fetch(C, 100), 0.1)
        assert leader.propose(0.1) is not None
        grow(leader, 120)
        leader.on_fetch(fetch(B, 120, last=3), 0.2)
        leader.advance(0.2)
        assert leader.logs[0].watermark == 100

    def test_one_that_may_still_be_in_sync_is_waited_for(self) -> None:
        leader = leading(record(A, B, C))
        leader.on_fetch(fetch(B, 100), LAG)
        assert leader.propose(LAG + 0.1) is not None
        assert not leader.advance(LAG + 0.1)
        leader.on_record(VersionedPartition(record(A, B), 8))
        assert leader.advance(LAG + 0.1)

    def test_nothing_else_is_proposed_while_the_outcome_is_unknown(self) -> None:
        leader = leading(record(A, B))
        leader.on_fetch(fetch(C, 100), 0.1)
        assert leader.propose(0.1) is not None
        assert leader.propose(9.0) is None
        leader.on_record(VersionedPartition(record(A, B), 7))
        assert leader.pending is not None, "the same revision says nothing about the outcome"
        leader.on_record(VersionedPartition(record(A, B, C), 8))
        assert leader.pending is None

    def test_what_a_follower_has_is_forgotten_when_it_leaves(self) -> None:
        leader = leading()
        leader.on_fetch(fetch(C, 100), 0.1)
        leader.on_record(VersionedPartition(record(A, B), 8))
        assert leader.propose(0.1) is None, "it must be heard of again before it may join"

    def test_what_an_earlier_process_of_a_follower_had_is_forgotten(self) -> None:
        leader = leading(record(A, B))
        leader.on_fetch(fetch(C, 100), 0.1)
        leader.on_sessions({**SESSIONS, C: SessionId(33)})
        assert leader.propose(0.1) is None

    def test_a_deposed_leader_proposes_nothing(self) -> None:
        leader = leading()
        leader.deposed = True
        assert leader.propose(100.0) is None


class TestProof:
    def test_a_lease_proves(self) -> None:
        assert leading(lease_until=5.0).is_proven(4.9)

    def test_without_a_lease_all_in_sync_followers_must_have_been_heard(self) -> None:
        leader = leading(lease_until=0.0)
        leader.on_fetch(fetch(B, 100), 20.0)
        assert not leader.is_proven(20.0)
        leader.on_fetch(fetch(C, 100), 20.0)
        assert leader.is_proven(20.0)
        assert not leader.is_proven(20.1 + LAG)

    def test_a_leader_that_has_heard_nobody_has_only_its_lease(self) -> None:
        assert not leading(lease_until=0.0).is_proven(0.0)

    def test_a_leader_alone_without_a_lease_proves_nothing(self) -> None:
        assert not leading(record(A, min_in_sync=1), lease_until=0.0).is_proven(0.0)

    def test_a_deposed_leader_proves_nothing(self) -> None:
        leader = leading(lease_until=5.0)
        leader.deposed = True
        assert not leader.is_proven(1.0)


class TestWaitingFetches:
    def test_a_follower_whose_fetch_waits_is_in_sync_for_as_long_as_it_waits(self) -> None:
        leader = leading(record(A, B))
        asked = fetch(B, 100)
        leader.on_fetch(asked, 0.1)
        waiting = leader.hold(asked)
        assert leader.propose(50 * LAG) is None
        leader.release(waiting, 0, 50 * LAG)
        assert leader.propose(51 * LAG) is None
        assert leader.propose(51 * LAG + 0.1) is not None

    def test_with_two_logs_one_that_waits_is_not_enough(self) -> None:
        leader = leading(record(A, B), logs=2)
        asked = fetch(B, 100)
        leader.on_fetch(asked, 0.1)
        leader.hold(asked)
        assert leader.propose(2 * LAG) is not None

    def test_one_that_only_waits_proves_nothing_without_a_lease(self) -> None:
        leader = leading(record(A, B), lease_until=0.0)
        asked = fetch(B, 100)
        leader.on_fetch(asked, 10.0)
        leader.hold(asked)
        assert leader.is_proven(10.0 + LAG)
        assert not leader.is_proven(10.1 + LAG)

    def test_fetches_wait_for_a_short_time_only_when_the_lease_is_not_renewed(self) -> None:
        leader = leading(lease_until=5.0)
        assert leader.wait_s_max(5.0 - LAG) == math.inf
        assert leader.wait_s_max(5.1 - LAG / 2) < LAG / 2
        assert leader.wait_s_max(99.0) < LAG / 2

    def test_a_leader_is_at_rest_once_all_in_sync_followers_wait(self) -> None:
        leader = leading()
        assert leader.is_restless()
        for node in (B, C):
            asked = fetch(node, 100)
            leader.on_fetch(asked, 0.1)
            leader.hold(asked)
        assert not leader.is_restless()

    def test_a_leader_alone_is_at_rest_unless_its_lease_must_confirm_something(self) -> None:
        leader = leading(record(A, min_in_sync=1), lease_until=5.0)
        assert leader.is_restless()
        leader.advance(1.0)
        assert not leader.is_restless()


def following(starts: EpochHistory, end: int, *, start: int = 0, watermark: int = 0) -> Follower:
    log = FollowedLog(starts, offset(start), offset(end), offset(watermark))
    return Follower(P, B, SESSIONS[B], record(), [log])


def stored(at: int, number: int) -> bytes:
    entry = store_batch(
        seal_batch(b"body", 2, PAYLOAD),
        base_offset=offset(at),
        epoch=epoch(number),
        append_time=Microseconds(1),
        durable_offset=offset(at),
    )
    return b"".join(entry.buffers())


def entries(data: bytes, watermark: int = 0, number: int = 3, start: int = 0) -> Entries:
    return Entries(epoch=epoch(number), watermark=offset(watermark), data=data, start=offset(start))


class TestFollower:
    def test_it_asks_from_its_end_and_tells_its_last_epoch_and_what_is_synced(self) -> None:
        asked = following(history((1, 0), (2, 60)), 80, watermark=40).fetch(0, offset(70))
        assert (asked.offset, asked.last_epoch, asked.synced) == (80, 2, 70)
        assert (asked.node, asked.session, asked.epoch, asked.watermark) == (B, 2, 3, 40)

    def test_logs_that_are_idle_together_do_not_ask_together(self) -> None:
        shares = {
            Follower(PartitionId(f"t/{number}"), B, SESSIONS[B], record(), []).wait_share(log)
            for number in range(50)
            for log in (0, 1)
        }
        assert len(shares) == 100
        assert all(0.75 <= share <= 1 for share in shares)
        assert max(shares) - min(shares) > 0.2

    def test_entries_are_stored_and_the_watermark_follows(self) -> None:
        follower = following(history((1, 0)), 10)
        asked = follower.fetch(0, offset(10))
        step = follower.on_reply(0, asked, entries(stored(10, 2) + stored(12, 3), watermark=13))
        assert isinstance(step, Append)
        assert [entry.base_offset for entry in step.entries] == [10, 12]
        assert step.watermark == 13
        assert follower.logs[0].watermark == 0, "not before they are stored"

    def test_the_watermark_is_never_beyond_what_it_has(self) -> None:
        follower = following(history((1, 0)), 10)
        step = follower.on_reply(0, follower.fetch(0, offset(10)), entries(b"", watermark=99))
        assert step == Ask()
        assert follower.logs[0].watermark == 10

    def test_a_reply_of_another_epoch_is_ignored(self) -> None:
        follower = following(history((1, 0)), 10)
        asked = follower.fetch(0, offset(10))
        assert follower.on_reply(0, asked, entries(stored(10, 2), number=2)) == Pause()
        assert follower.on_reply(0, asked, NotLeading(epoch=epoch(3))) == Pause()

    def test_a_reply_to_a_question_of_long_ago_is_ignored(self) -> None:
        follower = following(history((1, 0)), 10)
        asked = follower.fetch(0, offset(10))
        follower.logs[0].end = offset(12)
        assert follower.on_reply(0, asked, entries(stored(10, 2))) == Pause()

    @pytest.mark.parametrize(
        "data",
        [
            stored(12, 2),  # a gap
            stored(8, 2),  # what it has already
            stored(10, 2) + stored(12, 1),  # epochs that go back
            stored(10, 4),  # an epoch that has not begun
            stored(10, 2)[:-8],  # cut on the way
        ],
    )
    def test_entries_that_cannot_be_the_leaders_are_refused(self, data: bytes) -> None:
        follower = following(history((1, 0)), 10)
        with pytest.raises(CorruptLog):
            follower.on_reply(0, follower.fetch(0, offset(10)), entries(data))

    @pytest.mark.parametrize(
        ("theirs", "cut"),
        [
            (EpochEnd(epoch(2), offset(70)), 70),  # the leader's epoch 2 is shorter
            (EpochEnd(epoch(1), offset(90)), 60),  # ours ended sooner in the epoch we share
            (EpochEnd(epoch(1), offset(40)), 40),
            (NO_EPOCH, 0),
        ],
    )
    def test_it_is_cut_where_epochs_part_never_at_the_watermark(
        self, theirs: EpochEnd | LeaderEpoch, cut: int
    ) -> None:
        end = theirs if isinstance(theirs, EpochEnd) else EpochEnd(NO_EPOCH, offset(0))
        follower = following(history((1, 0), (2, 60)), 80, watermark=10)
        reply = Diverged(epoch=epoch(3), end=end)
        assert follower.on_reply(0, follower.fetch(0, offset(80)), reply) == Cut(offset(cut))

    def test_a_log_that_begins_after_where_the_two_agree_begins_anew(self) -> None:
        follower = following(history((1, 0), (2, 60)), 80, start=70, watermark=70)
        reply = Diverged(epoch=epoch(3), end=EpochEnd(epoch(1), offset(50)))
        assert follower.on_reply(0, follower.fetch(0, offset(80)), reply) == BeginAnew(offset(0))

    def test_what_the_leader_has_dropped_is_dropped_once(self) -> None:
        follower = following(history((1, 0)), 10, watermark=10)
        reply = entries(b"", watermark=10, start=8)
        assert follower.on_reply(0, follower.fetch(0, offset(10)), reply) == Drop(offset(8))
        assert follower.on_reply(0, follower.fetch(0, offset(10)), reply) == Ask()

    def test_nothing_beyond_the_watermark_is_dropped(self) -> None:
        follower = following(history((1, 0)), 10)
        asked = follower.fetch(0, offset(10))
        reply = entries(b"", watermark=4, start=8)
        assert follower.on_reply(0, asked, reply) == Ask()
        reply = entries(stored(10, 3), watermark=12, start=8)
        step = follower.on_reply(0, asked, reply)
        assert isinstance(step, Append)
        assert step.then == Drop(offset(8)), "once the watermark is known to be there"

    def test_a_log_that_the_leader_cannot_continue_begins_anew(self) -> None:
        follower = following(history((1, 0)), 10)
        reply = Gone(epoch=epoch(3), start=offset(500))
        assert follower.on_reply(0, follower.fetch(0, offset(10)), reply) == BeginAnew(offset(500))


class TestEpochHistory:
    def test_an_epoch_without_entries_leaves_no_trace(self) -> None:
        one = history((1, 0), (2, 10))
        one.begin(epoch(3), offset(10))
        assert one.starts == (EpochStart(epoch(1), offset(0)), EpochStart(epoch(3), offset(10)))

    def test_epochs_only_grow(self) -> None:
        with pytest.raises(AssertionError):
            history((2, 0)).begin(epoch(2), offset(5))

    def test_cutting_forgets_epochs_that_have_no_entry_left(self) -> None:
        one = history((1, 0), (2, 10), (3, 20))
        one.truncate(offset(15))
        assert one.last_epoch == 2
        one.truncate(offset(10))
        assert one.last_epoch == 1
        one.truncate(offset(0))
        assert one.last_epoch == NO_EPOCH

    def test_of_epochs_before_the_start_the_one_that_reaches_it_is_kept(self) -> None:
        one = history((1, 0), (2, 10), (3, 20))
        one.forget(offset(10))
        assert one.starts[0].epoch == 1, "a follower may end right before the start"
        one.forget(offset(11))
        assert one.starts[0].epoch == 2
        one.forget(offset(99))
        assert [start.epoch for start in one.starts] == [3]

    def test_epochs_that_begin_among_entries_are_found(self) -> None:
        found = Entries(epoch=epoch(3), watermark=offset(0), data=stored(4, 1) + stored(6, 3))
        follower = following(history((1, 0)), 4)
        step = follower.on_reply(0, follower.fetch(0, offset(4)), found)
        assert isinstance(step, Append)
        assert epoch_starts(step.entries, epoch(1)) == [(3, 6)]


def test_entries_that_a_single_node_stored_end_where_the_first_leader_began() -> None:
    adopted = history((1, 100), (3, 150))
    assert adopted.end_of(NO_EPOCH, offset(0), offset(200)) == EpochEnd(NO_EPOCH, offset(100))
    assert history().end_of(NO_EPOCH, offset(0), offset(100)) == EpochEnd(NO_EPOCH, offset(100))
    assert history((2, 100)).end_of(epoch(1), offset(0), offset(120)) == EpochEnd(
        NO_EPOCH, offset(100)
    )
    # In every other log they are none: it begins with its first epoch.
    assert history((2, 40)).end_of(epoch(1), offset(40), offset(90)) == EpochEnd(
        NO_EPOCH, offset(40)
    )
