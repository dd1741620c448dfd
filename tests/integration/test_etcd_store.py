"""The metadata store on a real etcd: the contract, and what networks and etcd do to it."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from quiver.cluster.metadata.etcd.gateway import EtcdSettings
from quiver.cluster.metadata.etcd.store import EtcdStore
from quiver.cluster.metadata.store import Expect, MetadataStore, Put
from quiver.errors import MetadataError, MetadataUnavailable
from quiver.model.clock import SystemClock
from tests.aio import async_test
from tests.etcd_server import EtcdServer
from tests.ports import free_port
from tests.unit.cluster.metadata.metadata_conformance import MetadataConformance

pytestmark = pytest.mark.process

T = TypeVar("T")

_prefixes = (f"test-{number}/" for number in count())


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def opened(*endpoints: str, **settings: object) -> AsyncIterator[EtcdStore]:
    settings = {"prefix": next(_prefixes), "request_timeout_s": 2.0} | settings
    store = await EtcdStore.open(EtcdSettings(endpoints=endpoints, **settings), SystemClock())
    try:
        yield store
    finally:
        await store.close()


class TestEtcdStore(MetadataConformance):
    lease_seconds = 2

    @pytest.fixture(autouse=True)
    def _place(self, etcd: EtcdServer) -> None:
        self.etcd = etcd

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MetadataStore]:
        async with opened(self.etcd.endpoint) as store:
            yield store

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def forget_history(self, store: MetadataStore) -> None:
        revision = await store.commit([], [Put("noise", b"")])
        await asyncio.to_thread(post, self.etcd, "/v3/kv/compaction", {"revision": revision})


def post(server: EtcdServer, path: str, request: dict[str, object]) -> None:
    body = json.dumps(request).encode()
    with urllib.request.urlopen(server.endpoint + path, body, timeout=30) as response:
        response.read()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[EtcdServer]]:
    """A cluster of three."""
    ports = [(free_port(), free_port()) for _ in range(3)]
    names = [(f"m{number}", f"127.0.0.1:{peer}") for number, (_, peer) in enumerate(ports)]
    servers = [
        EtcdServer(tmp_path / name, name=name, ports=pair, members=names)
        for (name, _), pair in zip(names, ports, strict=True)
    ]
    try:
        for server in servers:
            server.start(wait=False)
        for server in servers:
            server.wait_ready()
        yield servers
    finally:
        for server in servers:
            server.stop()


async def insisted(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again and again while etcd is electing, within a bound."""
    async with asyncio.timeout(50):
        while True:
            try:
                return await ask()
            except MetadataUnavailable:
                await asyncio.sleep(0.1)


async def committed(store: EtcdStore, key: str, value: bytes) -> int:
    return await insisted(lambda: store.commit([], [Put(key, value)]))


@async_test
async def test_calls_go_on_when_the_endpoint_in_use_dies(members: list[EtcdServer]) -> None:
    async with opened(*(member.endpoint for member in members)) as store:
        await store.commit([], [Put("a", b"1")])
        members[0].stop()
        await committed(store, "a", b"2")
        entry = await store.get("a")
        assert entry is not None
        assert entry.value == b"2"


@async_test
async def test_a_watch_goes_on_elsewhere_when_its_endpoint_dies(members: list[EtcdServer]) -> None:
    async with opened(*(member.endpoint for member in members)) as store:
        start = (await store.list("")).revision
        async with aclosing(store.watch("", start)) as watch:
            expected = [await store.commit([], [Put("n", b"0")])]
            told = [(await anext(watch)).revision]
            waiting = asyncio.create_task(anext(watch))
            members[0].stop()
            for n in range(1, 4):
                expected.append(await committed(store, "n", b"%d" % n))
            async with asyncio.timeout(50):
                told.append((await waiting).revision)
                # A commit that seemed to fail may have been made: it is told too.
                while told[-1] < expected[-1]:
                    told.append((await anext(watch)).revision)
            assert set(expected) <= set(told)
            assert told == sorted(set(told))


@async_test
async def test_an_endpoint_that_hangs_is_passed_over(members: list[EtcdServer]) -> None:
    endpoints = [member.endpoint for member in members]
    async with opened(*endpoints, request_timeout_s=0.5) as store:
        revision = await committed(store, "a", b"1")
        members[0].pause()
        entry = await insisted(lambda: store.get("a"))
        assert entry is not None
        assert entry.revision == revision


@async_test
async def test_a_member_without_a_quorum_answers_no_reads(members: list[EtcdServer]) -> None:
    async with opened(members[0].endpoint, request_timeout_s=1.0) as store:
        await store.commit([], [Put("a", b"1")])
        members[1].stop()
        members[2].stop()
        with pytest.raises(MetadataUnavailable):
            await store.get("a")


@async_test
async def test_an_etcd_that_is_away_for_a_while_is_unavailable_and_then_back(
    tmp_path: Path,
) -> None:
    server = EtcdServer(tmp_path / "etcd")
    server.start()
    try:
        async with opened(server.endpoint) as store:
            start = await store.commit([], [Put("a", b"0")])
            async with aclosing(store.watch("", start)) as watch:
                await store.commit([], [Put("a", b"1")])
                await anext(watch)  # it has begun
                waiting = asyncio.create_task(anext(watch))
                server.stop()
                with pytest.raises(MetadataUnavailable):
                    await store.get("a")
                await asyncio.to_thread(server.start)
                revision = await committed(store, "a", b"2")
                async with asyncio.timeout(50):
                    assert (await waiting).revision == revision
    finally:
        server.stop()


@async_test
async def test_no_etcd_at_all_is_said_at_once() -> None:
    with pytest.raises(MetadataUnavailable, match="no etcd endpoint answers"):
        async with opened(f"http://127.0.0.1:{free_port()}"):
            pass


@async_test
async def test_two_clusters_share_one_etcd_and_see_only_their_own(etcd: EtcdServer) -> None:
    async with opened(etcd.endpoint) as one, opened(etcd.endpoint) as other:
        await one.commit([], [Put("a", b"one")])
        assert await other.get("a") is None
        listing = await other.list("")
        assert listing.entries == ()
        async with aclosing(other.watch("", listing.revision - 1)) as watch:
            waiting = asyncio.create_task(anext(watch))
            revision = await other.commit([Expect("a", 0)], [Put("a", b"other")])
            assert (await waiting).revision == revision


@async_test
async def test_a_listing_of_many_pages_is_one_snapshot(etcd: EtcdServer) -> None:
    async with opened(etcd.endpoint) as store:
        keys = [f"{n:05d}" for n in range(4_500)]
        for start in range(0, len(keys), 128):
            await store.commit([], [Put(key, b"") for key in keys[start : start + 128]])
        listing = await store.list("")
        assert [entry.key for entry in listing.entries] == keys
        assert listing.revision == max(entry.revision for entry in listing.entries)


@async_test
async def test_a_user_with_the_right_password_is_let_in_and_again_after_a_restart(
    tmp_path: Path,
) -> None:
    server = EtcdServer(tmp_path / "etcd")
    server.start()
    try:
        for path, request in (
            ("/v3/auth/role/add", {"name": "root"}),
            ("/v3/auth/user/add", {"name": "root", "password": "right"}),
            ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
            ("/v3/auth/enable", {}),
        ):
            await asyncio.to_thread(post, server, path, request)
        with pytest.raises(MetadataError, match="user"):
            async with opened(server.endpoint):
                pass
        with pytest.raises(MetadataError, match="user"):
            async with opened(server.endpoint, username="root", password="wrong"):
                pass
        async with opened(server.endpoint, username="root", password="right") as store:
            await store.commit([], [Put("a", b"1")])
            server.stop()
            await asyncio.to_thread(server.start)  # the tokens of before mean nothing to it
            assert await committed(store, "a", b"2") > 0
    finally:
        server.stop()


@async_test
async def test_tls_is_spoken_and_an_unknown_certificate_refused(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    options = ("--cert-file", certificate, "--key-file", key)
    server = EtcdServer(tmp_path / "etcd", scheme="https", options=options)
    server.start()
    try:
        trusting = ssl.create_default_context(cafile=certificate)
        async with opened(server.endpoint, tls=trusting) as store:
            revision = await committed(store, "a", b"1")
            async with aclosing(store.watch("", revision - 1)) as watch:
                assert (await anext(watch)).revision == revision
        with pytest.raises(MetadataUnavailable):
            async with opened(server.endpoint, tls=ssl.create_default_context()):
                pass
    finally:
        server.stop()


def make_certificate(folder: Path) -> tuple[str, str]:
    certificate, key = str(folder / "etcd.crt"), str(folder / "etcd.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
