"""Restores a backup into a running node or cluster that has none of its topics.

Topics are created with their numbers and offsets, then filled, then the subscriptions get their state, and
last the topics are opened for publishing. Each step can be repeated, so a restore that was interrupted
goes on when it is run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from quiver.aio import for_each
from quiver.backup.manifest import Chunk, Manifest, PartitionBackup, SubscriptionBackup, TopicBackup
from quiver.backup.nodes import Nodes
from quiver.backup.pace import Pace
from quiver.backup.place import BackupPlace
from quiver.backup.plan import (
    Limit,
    chosen_subscriptions,
    chosen_topics,
    covers,
    cut,
    restored_info,
)
from quiver.errors import BackupNotFound, InvalidRequest, TopicExists
from quiver.model.envelope import entries_in, entry_size_at
from quiver.protocol import (
    Counted,
    Done,
    EntriesRestored,
    FinishRestore,
    ListTopics,
    PartitionDeliveries,
    RestoreEntries,
    RestoreState,
    RestoreSubscription,
    RestoreToken,
    RestoreTopic,
    Subscription,
    Topic,
    Topics,
)

_PIECE_BYTES = 4 << 20
_AT_ONCE = 4


class Restored(msgspec.Struct, kw_only=True):
    """What a restore has done."""

    backup: str
    topics: list[str] = []
    already: list[str] = []
    """Topics that an earlier run has finished."""
    renumbered: list[str] = []
    """Topics whose numbers were in use: ids of their messages are others than before."""
    subscriptions: list[str] = []
    left_out: list[str] = []
    """Subscriptions that also read topics which are not restored."""
    tokens: int = 0
    tokens_refused: str = ""
    """Why tokens of the backup were not restored, if there were some."""
    messages: int = 0
    bytes: int = 0


class _Place(NamedTuple):
    topic: TopicBackup
    partition: int

    @property
    def part(self) -> PartitionBackup:
        return self.topic.partitions[self.partition]


class Restorer:
    """``on_bytes`` is called with the size of each piece that was sent."""

    def __init__(
        self,
        nodes: Nodes,
        place: BackupPlace,
        pace: Pace,
        *,
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._nodes = nodes
        self._place = place
        self._pace = pace
        self._on_bytes = on_bytes

    async def restore(
        self,
        manifest: Manifest,
        *,
        topics: Sequence[str] = (),
        limit: Limit = Limit(),  # noqa: B008 - frozen
        with_tokens: bool = True,
    ) -> Restored:
        """``TopicExists``, before anything is changed, if one of the topics is there already."""
        name = limit.name_of(manifest.id)
        chosen = chosen_topics(manifest, topics)
        if not chosen and (topics or manifest.topics):
            held = ", ".join(repr(one.info.name) for one in manifest.topics[:5])
            more = " and others" if len(manifest.topics) > 5 else ""
            raise BackupNotFound(
                f"backup {manifest.id} has no topic that matches {', '.join(map(repr, topics))}; "
                f"it has {held or 'none'}{more}",
                backup=manifest.id,
            )
        done = Restored(backup=manifest.id)
        await self._require_absent(chosen, name)
        pending = [one for one in chosen if await self._create(one, name, limit, done)]
        places = [_Place(one, index) for one in pending for index in range(len(one.partitions))]
        await for_each(places, lambda place: self._fill(place, limit, done), _AT_ONCE)
        subscriptions, done.left_out = chosen_subscriptions(
            manifest, [one.info.name for one in chosen]
        )
        for one in subscriptions:
            await self._subscribe(one, pending, done)
        for topic in pending:
            await self._nodes.ask(FinishRestore(topic=topic.info.name), Done)
            done.topics.append(topic.info.name)
        if with_tokens:
            await self._restore_tokens(manifest, done)
        return done

    async def _require_absent(self, chosen: Sequence[TopicBackup], backup: str) -> None:
        listed, _ = await self._nodes.ask(ListTopics(), Topics)
        others = {one.name for one in listed.topics if one.restored_from != backup}
        taken = sorted(others & {one.info.name for one in chosen})
        if taken:
            raise TopicExists(
                f"the node has topics of the same name already ({', '.join(map(repr, taken[:5]))}): "
                "restore into an empty node, delete them first, or choose others with --topics",
                topic=taken[0],
                backup=backup,
            )

    # ------------------------------------------------------------------ topics

    async def _create(self, topic: TopicBackup, name: str, limit: Limit, done: Restored) -> bool:
        """Create a topic; whether it has to be filled."""
        ends = [await self._end(topic, index, limit) for index in range(len(topic.partitions))]
        info = restored_info(topic, ends)
        request = RestoreTopic(name=info.name, info=info, backup=name)
        made, _ = await self._nodes.ask(request, Topic)
        if made.topic.number != info.number:
            done.renumbered.append(info.name)
        if not made.topic.is_restoring:
            done.already.append(info.name)
        return made.topic.is_restoring

    async def _end(self, topic: TopicBackup, index: int, limit: Limit) -> int:
        """Where a partition will end."""
        part, end = topic.partitions[index], limit.offsets.get((topic.info.name, index))
        if not part.chunks:
            return part.next_offset
        wanted = [one for one in part.chunks if not limit.is_beyond(one, end)]
        if not wanted:
            return part.start_offset
        if limit.is_within(wanted[-1], end):
            return wanted[-1].next_offset
        data = await self._data(wanted[-1], limit, end)
        kept = entries_in(data)
        return kept[-1].next_offset if kept else wanted[-1].base_offset

    async def _data(self, chunk: Chunk, limit: Limit, end: int | None) -> bytes:
        """The bytes of a chunk, as far as they are within the limit."""
        data = await asyncio.to_thread(self._place.get, chunk)
        if limit.is_within(chunk, end):
            return data
        kept = cut(entries_in(data), limit, end)
        return b"".join([buffer for entry in kept for buffer in entry.buffers()])

    async def _fill(self, place: _Place, limit: Limit, done: Restored) -> None:
        name, index = place.topic.info.name, place.partition
        request = RestoreEntries(topic=name, partition=index)
        end = limit.offsets.get((name, index))
        reply, _ = await self._nodes.ask_new_leader(request, EntriesRestored, name, index)
        begin = next_offset = reply.next_offset
        for chunk in place.part.chunks:
            if limit.is_beyond(chunk, end):
                break
            if chunk.next_offset <= next_offset:
                continue  # an earlier run has stored it
            for piece in _pieces(await self._data(chunk, limit, end)):
                await self._pace.take(len(piece))
                reply, _ = await self._nodes.ask_leader(
                    request, EntriesRestored, name, index, [piece]
                )
                next_offset = reply.next_offset
                done.bytes += len(piece)
                self._on_bytes(len(piece))
        done.messages += next_offset - begin

    # ------------------------------------------------------------------ subscriptions

    async def _subscribe(
        self, one: SubscriptionBackup, topics: Sequence[TopicBackup], done: Restored
    ) -> None:
        """A subscription, and where it stands in the topics that are being restored."""
        covered = [topic for topic in topics if covers(one.info, topic.info.name)]
        if not covered:
            return
        info = one.info
        await self._nodes.ask(RestoreSubscription(name=info.name, info=info), Subscription)
        states = _states(one, await asyncio.to_thread(self._place.get, one.state))
        for topic in covered:
            for index in range(len(topic.partitions)):
                state, body = states.get((topic.info.number, index), (None, b""))
                request = RestoreState(
                    subscription=info.name,
                    topic=topic.info.name,
                    partition=index,
                    next_offset=0 if state is None else state.next_offset,
                    states={} if state is None else state.states,
                    deliveries={} if state is None else state.deliveries,
                )
                await self._nodes.ask_new_leader(request, Done, topic.info.name, index, [body])
        done.subscriptions.append(info.name)

    async def _restore_tokens(self, manifest: Manifest, done: Restored) -> None:
        for token in manifest.tokens:
            request = RestoreToken(
                name=token.info.name,
                token_id=token.info.id,
                grants=token.info.grants,
                created_us=token.info.created_us,
                expires_us=token.info.expires_us,
            )
            body = [] if token.hash is None else [token.hash]
            try:
                done.tokens += (await self._nodes.ask(request, Counted, body))[0].count
            except InvalidRequest as error:
                done.tokens_refused = error.message
                return


def _states(
    one: SubscriptionBackup, data: bytes
) -> dict[tuple[int, int], tuple[PartitionDeliveries, bytes]]:
    """The state in each partition, by the topic's number, with its part of the bitmaps."""
    found, at = {}, 0
    for part in one.partitions:
        size = sum(part.states.values()) + sum(part.deliveries.values())
        found[part.topic_number, part.partition] = part, data[at : at + size]
        at += size
    return found


def _pieces(data: bytes) -> Iterator[memoryview]:
    """Whole entries, a few megabytes at a time."""
    view, begin, at = memoryview(data), 0, 0
    while at < len(view):
        at += entry_size_at(view, at)
        if at - begin >= _PIECE_BYTES or at >= len(view):
            yield view[begin:at]
            begin = at
