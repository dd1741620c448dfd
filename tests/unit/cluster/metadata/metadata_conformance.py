"""What every ``MetadataStore`` must do: one suite, run against each implementation.

A subclass named ``Test…`` says how a store is opened, how time passes for its leases and how its
history is made to be forgotten. Each test gets a store without keys; its revision may have any
value, and may grow by more than one with a commit.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, aclosing

import pytest

from quiver.cluster.metadata.store import (
    MAX_COMMIT_KEYS,
    MAX_KEY_CHARS,
    MAX_VALUE_BYTES,
    Delete,
    Entry,
    Expect,
    LeaseId,
    Listing,
    MetadataStore,
    Put,
    WatchBatch,
)
from quiver.errors import (
    InvalidRequest,
    LeaseLost,
    MetadataConflict,
    MetadataError,
    WatchCompacted,
)
from tests.aio import async_test

Changes = list[Put | Delete]


class MetadataConformance(ABC):
    lease_seconds = 5

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[MetadataStore]:
        """A store without keys, closed on leaving."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let time pass as the store's leases see it."""

    @abstractmethod
    async def forget_history(self, store: MetadataStore) -> None:
        """Make the store forget at least every change made so far but the newest."""

    # Reading and committing

    @async_test
    async def test_an_empty_store_has_a_revision_and_no_entries(self) -> None:
        async with self.opened() as store:
            assert await store.get("a") is None
            listing = await store.list("")
            assert listing.entries == ()
            assert listing.revision >= 1

    @async_test
    async def test_an_entry_carries_the_revision_of_its_last_change(self) -> None:
        async with self.opened() as store:
            first = await store.commit([], [Put("a", b"1")])
            second = await store.commit([], [Put("b", b"2")])
            third = await store.commit([], [Put("a", b"3")])
            assert first < second < third
            assert await store.get("a") == Entry("a", b"3", third)
            assert await store.get("b") == Entry("b", b"2", second)

    @async_test
    async def test_putting_the_same_value_is_a_change(self) -> None:
        async with self.opened() as store:
            first = await store.commit([], [Put("a", b"1")])
            assert await store.commit([], [Put("a", b"1")]) > first

    @async_test
    async def test_all_changes_of_a_commit_share_its_revision(self) -> None:
        async with self.opened() as store:
            await store.commit([], [Put("gone", b"")])
            revision = await store.commit([], [Put("b", b"2"), Put("a", b"1"), Delete("gone")])
            assert await store.list("") == Listing(
                (Entry("a", b"1", revision), Entry("b", b"2", revision)), revision
            )

    @async_test
    async def test_revision_zero_expects_that_there_is_no_such_key(self) -> None:
        async with self.opened() as store:
            revision = await store.commit([Expect("a", 0)], [Put("a", b"1")])
            with pytest.raises(MetadataConflict) as caught:
                await store.commit([Expect("a", 0)], [Put("a", b"2")])
            assert caught.value.details["key"] == "a"
            assert await store.get("a") == Entry("a", b"1", revision)

    @async_test
    async def test_an_expected_revision_holds_only_until_the_key_changes(self) -> None:
        async with self.opened() as store:
            first = await store.commit([], [Put("a", b"1")])
            await store.commit([], [Put("other", b"")])
            second = await store.commit([Expect("a", first)], [Put("a", b"2")])
            with pytest.raises(MetadataConflict):
                await store.commit([Expect("a", first)], [Put("a", b"3")])
            assert await store.get("a") == Entry("a", b"2", second)

    @async_test
    async def test_a_deleted_key_is_expected_at_zero_again(self) -> None:
        async with self.opened() as store:
            first = await store.commit([], [Put("a", b"1")])
            await store.commit([Expect("a", first)], [Delete("a")])
            assert await store.get("a") is None
            with pytest.raises(MetadataConflict):
                await store.commit([Expect("a", first)], [Put("a", b"2")])
            assert await store.commit([Expect("a", 0)], [Put("a", b"3")]) > first

    @async_test
    async def test_one_failed_expectation_among_several_changes_nothing(self) -> None:
        async with self.opened() as store:
            a = await store.commit([], [Put("a", b"1")])
            b = await store.commit([], [Put("b", b"1")])
            before = await store.list("")
            with pytest.raises(MetadataConflict) as caught:
                await store.commit(
                    [Expect("a", a), Expect("b", a), Expect("c", 0)],
                    [Put("a", b"2"), Delete("b"), Put("c", b"2")],
                )
            assert caught.value.details["key"] == "b"
            assert await store.list("") == before
            assert before.revision == b

    @async_test
    async def test_expectations_may_be_about_keys_that_are_not_changed(self) -> None:
        async with self.opened() as store:
            fence = await store.commit([], [Put("fence", b"1")])
            await store.commit([Expect("fence", fence), Expect("x", 0)], [Put("y", b"")])
            await store.commit([], [Put("fence", b"2")])
            with pytest.raises(MetadataConflict):
                await store.commit([Expect("fence", fence)], [Put("y", b"late")])

    @async_test
    async def test_a_commit_that_changes_nothing_keeps_the_revision(self) -> None:
        async with self.opened() as store:
            revision = await store.commit([], [Put("a", b"1")])
            assert await store.commit([Expect("a", revision)], []) == revision
            assert await store.commit([], [Delete("missing")]) == revision
            with pytest.raises(MetadataConflict):
                await store.commit([Expect("a", 0)], [])
            assert (await store.list("")).revision == revision

    @async_test
    async def test_a_counter_raised_by_many_at_once_is_exact(self) -> None:
        async with self.opened() as store:
            await store.commit([], [Put("counter", b"0")])
            await asyncio.gather(*(_raise_counter(store, times=5) for _ in range(20)))
            entry = await store.get("counter")
            assert entry is not None
            assert entry.value == b"100"

    # Listing

    @async_test
    async def test_a_listing_is_sorted_by_code_point(self) -> None:
        async with self.opened() as store:
            keys = ["é", "z", "a", "Z", "a/b", "\U0001f3f9", "\uffee", "a0"]
            await store.commit([], [Put(key, key.encode()) for key in keys])
            assert [entry.key for entry in (await store.list("")).entries] == sorted(keys)

    @async_test
    async def test_a_listing_has_exactly_the_keys_under_the_prefix(self) -> None:
        ends = ["\x01", "/", "\x7f", "\x80", "é", "\ud7ff", "\ue000", "\uffff", "\U0010ffff"]
        keys = [a + b for a in ends for b in ("", *ends)]
        async with self.opened() as store:
            await store.commit([], [Put(key, b"") for key in keys])
            for prefix in ["", *ends, "//", "\x7f\U0010ffff"]:
                listing = await store.list(prefix)
                expected = sorted(key for key in keys if key.startswith(prefix))
                assert [entry.key for entry in listing.entries] == expected

    # Watching

    @async_test
    async def test_a_watch_from_the_past_tells_every_change_in_order(self) -> None:
        async with self.opened() as store:
            start = (await store.list("")).revision
            revisions = [await store.commit([], [Put("n", b"%d" % n)]) for n in range(20)]
            revisions.append(await store.commit([], [Delete("n")]))
            batches = await _take(store, "", start, len(revisions))
            assert batches == [
                *(
                    WatchBatch(revision, (Entry("n", b"%d" % n, revision),))
                    for n, revision in enumerate(revisions[:-1])
                ),
                WatchBatch(revisions[-1], (Delete("n"),)),
            ]

    @async_test
    async def test_a_watch_waits_for_changes_to_come(self) -> None:
        async with self.opened() as store:
            start = (await store.list("")).revision
            async with aclosing(store.watch("", start)) as watch:
                for n in range(3):
                    waiting = asyncio.create_task(anext(watch))
                    await asyncio.sleep(0.01)
                    assert not waiting.done()
                    revision = await store.commit([], [Put("a", b"%d" % n)])
                    assert (await waiting).revision == revision

    @async_test
    async def test_a_watch_tells_nothing_at_or_before_its_revision(self) -> None:
        async with self.opened() as store:
            first = await store.commit([], [Put("a", b"1")])
            second = await store.commit([], [Put("a", b"2")])
            assert [b.revision for b in await _take(store, "", first, 1)] == [second]

    @async_test
    async def test_a_batch_has_the_commits_changes_under_the_prefix_in_order(self) -> None:
        async with self.opened() as store:
            start = await store.commit([], [Put("a/old", b""), Put("b/old", b"")])
            await store.commit([], [Put("b/alone", b"")])
            changes: Changes = [Put("a/z", b"1"), Put("b/x", b"2"), Delete("a/old")]
            revision = await store.commit([], [*changes, Delete("a/missing"), Put("a/a", b"3")])
            assert await _take(store, "a/", start, 1) == [
                WatchBatch(
                    revision,
                    (Entry("a/z", b"1", revision), Delete("a/old"), Entry("a/a", b"3", revision)),
                )
            ]

    @async_test
    async def test_a_refused_commit_is_not_told(self) -> None:
        async with self.opened() as store:
            start = (await store.list("")).revision
            with pytest.raises(MetadataConflict):
                await store.commit([Expect("a", start)], [Put("a", b"refused")])
            revision = await store.commit([], [Put("a", b"made")])
            assert [b.revision for b in await _take(store, "", start, 1)] == [revision]

    @async_test
    async def test_a_watch_taken_up_again_goes_on_right_after_its_last_batch(self) -> None:
        async with self.opened() as store:
            start = (await store.list("")).revision
            revisions = [await store.commit([], [Put("n", b"%d" % n)]) for n in range(10)]
            told, position = [], start
            for count in (1, 2, 3, 4):
                batches = await _take(store, "n", position, count)
                told += [batch.revision for batch in batches]
                position = told[-1]
            assert told == revisions

    @async_test
    async def test_a_watch_from_a_later_revision_skips_what_comes_before(self) -> None:
        async with self.opened() as store:
            later = await store.commit([], [Put("a", b"0")]) + 2
            revisions = [await store.commit([], [Put("a", b"%d" % n)]) for n in range(5)]
            expected = [revision for revision in revisions if revision > later]
            assert [b.revision for b in await _take(store, "", later, len(expected))] == expected

    @async_test
    async def test_a_listing_and_the_changes_since_are_the_state_at_any_time(self) -> None:
        async with self.opened() as store:
            writers = [asyncio.create_task(_write_randomly(store, seed)) for seed in range(4)]
            followers = [asyncio.create_task(_follow(store, f"{n % 2}/")) for n in range(6)]
            await asyncio.gather(*writers)
            await store.commit([], [Put("0/end", b""), Put("1/end", b"")])
            for n, follower in enumerate(followers):
                listing = await store.list(f"{n % 2}/")
                assert await follower == {entry.key: entry for entry in listing.entries}

    @async_test
    async def test_a_watch_from_forgotten_history_is_refused(self) -> None:
        async with self.opened() as store:
            start = await store.commit([], [Put("a", b"1")])
            await store.commit([], [Put("a", b"2")])
            await self.forget_history(store)
            with pytest.raises(WatchCompacted):
                await _take(store, "", start, 1)
            listing = await store.list("")
            revision = await store.commit([], [Put("a", b"3")])
            told = await _take(store, "", listing.revision, 1)
            assert [batch.revision for batch in told] == [revision]

    @async_test
    async def test_a_quiet_watch_outlives_the_forgetting_of_others_changes(self) -> None:
        async with self.opened() as store:
            start = await store.commit([], [Put("other", b"")])
            async with aclosing(store.watch("quiet/", start)) as watch:
                waiting = asyncio.create_task(anext(watch))
                await self.forget_history(store)
                revision = await store.commit([], [Put("quiet/a", b"")])
                assert (await waiting).revision == revision

    # Leases

    @async_test
    async def test_keys_under_a_lease_go_together_when_it_runs_out(self) -> None:
        async with self.opened() as store:
            lease = await store.grant(self.lease_seconds)
            assert lease.ttl_seconds >= self.lease_seconds
            await store.commit([], [Put("b", b"", lease.id), Put("stays", b"")])
            start = await store.commit([], [Put("a", b"", lease.id)])
            await self.pass_time(lease.ttl_seconds + 1)
            (batch,) = await _take(store, "", start, 1)
            assert batch.changes == (Delete("a"), Delete("b"))
            assert [entry.key for entry in (await store.list("")).entries] == ["stays"]
            with pytest.raises(LeaseLost):
                await store.keep_alive(lease.id)

    @async_test
    async def test_a_lease_kept_alive_does_not_run_out(self) -> None:
        async with self.opened() as store:
            lease = await store.grant(self.lease_seconds)
            revision = await store.commit([], [Put("a", b"", lease.id)])
            for _ in range(3):
                await self.pass_time(lease.ttl_seconds * 0.6)
                assert 1 <= await store.keep_alive(lease.id) <= lease.ttl_seconds
            assert await store.get("a") == Entry("a", b"", revision)

    @async_test
    async def test_revoking_a_lease_deletes_its_keys_at_once(self) -> None:
        async with self.opened() as store:
            lease, other = (
                await store.grant(self.lease_seconds),
                await store.grant(self.lease_seconds),
            )
            changes = [Put("a", b"", lease.id), Put("b", b"", lease.id), Put("c", b"", other.id)]
            start = await store.commit([], changes)
            await store.revoke(lease.id)
            assert [entry.key for entry in (await store.list("")).entries] == ["c"]
            (batch,) = await _take(store, "", start, 1)
            assert batch.changes == (Delete("a"), Delete("b"))

    @async_test
    async def test_an_ended_lease_can_be_revoked_but_not_used(self) -> None:
        async with self.opened() as store:
            lease = await store.grant(self.lease_seconds)
            await store.revoke(lease.id)
            await store.revoke(lease.id)
            before = await store.list("")
            with pytest.raises(LeaseLost):
                await store.keep_alive(lease.id)
            with pytest.raises(LeaseLost):
                await store.commit([], [Put("a", b""), Put("b", b"", lease.id)])
            assert await store.list("") == before

    @async_test
    async def test_a_lease_never_granted_is_lost(self) -> None:
        async with self.opened() as store:
            with pytest.raises(LeaseLost):
                await store.keep_alive(LeaseId(7))

    @async_test
    async def test_a_key_put_again_without_a_lease_outlives_it(self) -> None:
        async with self.opened() as store:
            lease, other = (
                await store.grant(self.lease_seconds),
                await store.grant(self.lease_seconds),
            )
            await store.commit([], [Put("kept", b"", lease.id), Put("moved", b"", lease.id)])
            await store.commit([], [Put("kept", b"1"), Put("moved", b"2", other.id)])
            await store.revoke(lease.id)
            assert [entry.key for entry in (await store.list("")).entries] == ["kept", "moved"]
            await store.revoke(other.id)
            assert [entry.key for entry in (await store.list("")).entries] == ["kept"]

    @async_test
    async def test_a_lease_without_keys_ends_without_a_change(self) -> None:
        async with self.opened() as store:
            before = await store.list("")
            await store.revoke((await store.grant(self.lease_seconds)).id)
            assert await store.list("") == before

    # Bounds and closing

    @async_test
    async def test_keys_and_values_at_their_bounds_are_kept(self) -> None:
        async with self.opened() as store:
            key, value = "é" * MAX_KEY_CHARS, random.Random(1).randbytes(MAX_VALUE_BYTES)
            revision = await store.commit([Expect(key, 0)], [Put(key, value)])
            assert await store.get(key) == Entry(key, value, revision)
            many = [Put(f"{n}", b"") for n in range(MAX_COMMIT_KEYS)]
            await store.commit([Expect(put.key, 0) for put in many], many)
            assert len((await store.list("")).entries) == MAX_COMMIT_KEYS + 1

    @pytest.mark.parametrize("key", ["", "k" * (MAX_KEY_CHARS + 1), "nul\0", "\ud800"])
    @async_test
    async def test_a_key_out_of_bounds_is_refused_everywhere(self, key: str) -> None:
        async with self.opened() as store:
            with pytest.raises(InvalidRequest):
                await store.get(key)
            for expects, changes in (
                ([Expect(key, 0)], []),
                ([], [Put(key, b"")]),
                ([], [Delete(key)]),
            ):
                with pytest.raises(InvalidRequest):
                    await store.commit(expects, changes)
            if key:
                with pytest.raises(InvalidRequest):
                    await store.list(key)
                with pytest.raises(InvalidRequest):
                    await _take(store, key, 0, 1)

    @async_test
    async def test_a_commit_out_of_bounds_is_refused_whole(self) -> None:
        async with self.opened() as store:
            half = bytes(MAX_VALUE_BYTES // 2)
            many = range(MAX_COMMIT_KEYS + 1)
            before = await store.list("")
            refused: list[tuple[list[Expect], Changes]] = [
                ([], [Put("a", bytes(MAX_VALUE_BYTES + 1))]),
                ([], [Put("a", half), Put("b", half), Put("c", half)]),
                ([], [Put(f"{n}", b"") for n in many]),
                ([Expect(f"{n}", 0) for n in many], []),
                ([Expect("a", -1)], [Put("a", b"")]),
                ([], [Put("a", b"1"), Put("a", b"2")]),
                ([], [Put("a", b"1"), Delete("a")]),
            ]
            for expects, changes in refused:
                with pytest.raises(InvalidRequest):
                    await store.commit(expects, changes)
            assert await store.list("") == before

    @async_test
    async def test_times_and_revisions_out_of_bounds_are_refused(self) -> None:
        async with self.opened() as store:
            for ttl_seconds in (-1, 0, 86_401):
                with pytest.raises(InvalidRequest):
                    await store.grant(ttl_seconds)
            with pytest.raises(InvalidRequest):
                await _take(store, "", -1, 1)

    @async_test
    async def test_closing_ends_watches_and_refuses_calls(self) -> None:
        async with self.opened() as store:
            start = (await store.list("")).revision
            watch = store.watch("", start)
            await store.commit([], [Put("a", b"")])
            await anext(watch)  # it has begun
            waiting = asyncio.create_task(anext(watch, None))
            lease = await store.grant(self.lease_seconds)
            await store.close()
            await store.close()
            assert await waiting is None
            for call in (
                store.get("a"),
                store.list(""),
                store.commit([], [Put("a", b"")]),
                store.grant(self.lease_seconds),
                store.keep_alive(lease.id),
                store.revoke(lease.id),
                _take(store, "", start, 1),
            ):
                with pytest.raises(MetadataError):
                    await call


async def _take(
    store: MetadataStore, prefix: str, from_revision: int, count: int
) -> list[WatchBatch]:
    async with aclosing(store.watch(prefix, from_revision)) as watch, asyncio.timeout(50):
        return [await anext(watch) for _ in range(count)]


async def _raise_counter(store: MetadataStore, times: int) -> None:
    while times:
        entry = await store.get("counter")
        assert entry is not None
        try:
            await store.commit(
                [Expect("counter", entry.revision)],
                [Put("counter", b"%d" % (int(entry.value) + 1))],
            )
        except MetadataConflict:
            continue
        times -= 1


async def _write_randomly(store: MetadataStore, seed: int) -> None:
    rng = random.Random(seed)
    for n in range(40):
        keys = {f"{rng.randrange(2)}/{rng.randrange(10)}" for _ in range(rng.randint(1, 4))}
        await store.commit(
            [],
            [
                Delete(key) if rng.random() < 0.3 else Put(key, b"%d/%d" % (seed, n))
                for key in sorted(keys)
            ],
        )


async def _follow(store: MetadataStore, prefix: str) -> dict[str, Entry]:
    """The state under the prefix, from a listing and the changes since, once ``end`` is put."""
    listing = await store.list(prefix)
    state = {entry.key: entry for entry in listing.entries}
    position = listing.revision
    async with aclosing(store.watch(prefix, listing.revision)) as watch:
        async for batch in watch:
            assert batch.revision > position
            position = batch.revision
            for change in batch.changes:
                if isinstance(change, Delete):
                    assert state.pop(change.key, None) is not None
                else:
                    assert change.revision == batch.revision
                    state[change.key] = change
            if f"{prefix}end" in state:
                break
    return state
