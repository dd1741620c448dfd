"""Every request of the native protocol by every kind of caller."""

from __future__ import annotations

import asyncio
import typing
from pathlib import Path

import msgspec
import pytest

from quiver import protocol
from quiver.edge.calls.table import CALLS
from quiver.errors import Unauthenticated
from tests.integration.access_matrix.callers import OTHER_SCOPE, UNKNOWN, grant_sets, unknown_token
from tests.integration.access_matrix.grants import NEVER, suffice
from tests.integration.access_matrix.native_cases import CASES, TELLS_ALL, Case
from tests.integration.access_matrix.world import QUEUE, World, leaks, world
from tests.integration.edge_node import edge_test
from tests.integration.native_peer import SECONDS_MAX, Hangup, Peer

REFUSED = ("unauthenticated", "permission_denied")


def test_every_request_has_a_case() -> None:
    asked = {type(case.ask("")) for case in CASES}
    assert asked == set(CALLS) == set(typing.get_args(protocol.AnyRequest))


async def connected(made: World, source: str = "127.0.0.1") -> Peer:
    assert made.node.native_address is not None
    host, port = made.node.native_address.host, made.node.native_address.port
    async with asyncio.timeout(SECONDS_MAX):
        return Peer(*await asyncio.open_connection(host, port, local_addr=(source, 0)))


@pytest.mark.parametrize("kind", UNKNOWN)
@edge_test
async def test_nothing_is_answered_to_whoever_is_not_known(kind: str, tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        token = await unknown_token(made, kind)
        for number, case in enumerate(CASES):
            # From several addresses: after too many wrong tokens one is not listened to for a while.
            peer = await connected(made, f"127.0.1.{1 + number // 20}")
            with pytest.raises(Unauthenticated) as refused:
                await peer.greet(token)
            assert leaks(str(refused.value).encode(), (), b"") == []
            peer.request(case.ask(made.message_id), case.body)
            with pytest.raises(Hangup):
                await peer.reply()
            await peer.close()


@edge_test
async def test_each_request_is_answered_to_those_who_may_and_tells_nothing_else(
    tmp_path: Path,
) -> None:
    peers: dict[tuple[str, ...], Peer] = {}
    async with world(tmp_path) as made:
        for case in CASES:
            for grants in grant_sets(case.needs):
                if grants not in peers:
                    peers[grants] = await connected(made)
                    await peers[grants].greet(await made.token(*grants))
                await check(made, case, grants, peers[grants])
        for peer in peers.values():
            await peer.close()


async def check(made: World, case: Case, grants: tuple[str, ...], peer: Peer) -> None:
    await made.prepare(case.prepare)
    request = case.ask(made.message_id)
    reply, body = await peer.answer(peer.request(request, case.body))
    code = reply.code if isinstance(reply, protocol.Failed) else "done"
    is_allowed = NEVER not in case.needs and suffice(grants, case.needs)
    assert (code not in REFUSED) == is_allowed, f"{request} with {grants}: {code}"
    if isinstance(request, TELLS_ALL) and is_allowed:
        return
    text = msgspec.json.encode(reply) + bytes(body)
    found = leaks(text, grants, msgspec.json.encode(request))
    assert not found, f"{request} with {grants} tells of {found}"


@edge_test
async def test_what_is_not_there_is_refused_like_what_is(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        peer = await connected(made)
        await peer.greet(await made.token(*OTHER_SCOPE))
        for request in (
            lambda name: protocol.DescribeTopic(name=name),
            lambda name: protocol.DescribeSubscription(name=name),
            lambda name: protocol.Redrive(subscription=name),
            lambda name: protocol.DeleteSubscription(name=name),
        ):
            texts = set()
            for name in (QUEUE, "no-such-thing"):
                refusal = await peer.refusal(peer.request(request(name)))
                assert refusal.code == "permission_denied"
                texts.add(str(refusal).replace(name, ""))
            assert len(texts) == 1
        await peer.close()
