"""Calls to etcd over HTTP, to several endpoints in turn until one answers.

A call that changes something is sent to the next endpoint only if certainly no etcd has seen it; a
repeatable call whenever an endpoint fails. The endpoint that answered last is asked first. All reads are
linearizable: each answer went through etcd's quorum.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any, TypeVar

import aiohttp
import msgspec

from quiver.cluster.metadata.etcd.messages import (
    AuthReply,
    Failure,
    Request,
    Streamed,
    VersionReply,
)
from quiver.errors import LeaseLost, MetadataError, MetadataUnavailable

NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED, UNAVAILABLE = 5, 7, 16, 14
_PASSING = frozenset((1, 2, 4, 8, 10, 13, UNAVAILABLE))
"""gRPC codes of failures that may pass: cancelled, unknown, deadline, exhausted, aborted, internal."""
_OLD_TOKEN = "revision of auth store is old"  # noqa: S105 (what etcd says of one, not one)
_LINE_BYTES_MAX = 256 << 20
_KEEP_ALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))

Reply = TypeVar("Reply")


class EtcdSettings(msgspec.Struct, frozen=True, kw_only=True):
    endpoints: tuple[str, ...]
    """As in ``http://127.0.0.1:2379``."""
    prefix: str = "quiver/"
    """Before every key, so that several clusters can share one etcd."""
    username: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None
    request_timeout_s: float = 3.0
    """How long one endpoint may take to answer before another is asked."""


class NotAsked(Exception):
    """The endpoint never got the request: another may be asked whatever it was."""


class Unanswered(Exception):
    """The endpoint may have carried the request out, or not."""


class Refused(Exception):
    """etcd answered with an error that will stay."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Gateway:
    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._endpoints = tuple(endpoint.rstrip("/") for endpoint in settings.endpoints)
        assert self._endpoints, "etcd has at least one endpoint"
        self._first = 0
        self._token = ""
        connector = aiohttp.TCPConnector(limit=0, socket_factory=_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.request_timeout_s),
        )

    async def close(self) -> None:
        await self._session.close()

    async def versions(self) -> dict[str, str]:
        """The version of every endpoint that answers."""

        async def version(endpoint: str) -> str:
            try:
                async with asyncio.timeout(self._settings.request_timeout_s):
                    async with self._session.get(
                        f"{endpoint}/version", **self._transport()
                    ) as response:
                        return _decoded(await response.read(), VersionReply).etcdserver
            except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
                return ""

        found = await asyncio.gather(*map(version, self._endpoints))
        return {name: text for name, text in zip(self._endpoints, found, strict=True) if text}

    async def call(
        self, path: str, request: Request, reply: type[Reply], *, repeatable: bool
    ) -> Reply:
        """The answer of the first endpoint that gives one."""
        body = msgspec.json.encode(request)
        reasons = []
        for endpoint in self._in_turn():
            try:
                return _decoded(await self._ask(endpoint, path, body), reply)
            except NotAsked as failure:
                reasons.append(f"{endpoint}: {failure}")
            except Unanswered as failure:
                reasons.append(f"{endpoint}: {failure}")
                if not repeatable:
                    break
        raise MetadataUnavailable(f"etcd did not answer ({'; '.join(reasons)})")

    @asynccontextmanager
    async def stream(
        self, path: str, request: Request
    ) -> AsyncGenerator[tuple[str, AsyncGenerator[Streamed, None]], None]:
        """The endpoint that is asked, and the lines it answers with until it fails.

        ``NotAsked`` and ``Unanswered`` end it: whoever needs more asks again.
        """
        endpoint = next(self._in_turn())
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                response = await self._post(endpoint, path, msgspec.json.encode(request))
        except TimeoutError:
            self._pass_over(endpoint)
            raise Unanswered("no answer in time") from None
        lines = _lines(response)
        try:
            yield endpoint, lines
        except (NotAsked, Unanswered):
            self._pass_over(endpoint)
            raise
        finally:
            await lines.aclose()
            response.close()

    async def answers(self, endpoint: str, request: Request) -> bool:
        """Whether this endpoint answers a read from the quorum now."""
        try:
            await self._ask(endpoint, "/v3/kv/range", msgspec.json.encode(request))
        except (NotAsked, Unanswered):
            return False
        return True

    def _in_turn(self) -> Iterator[str]:
        first = self._first
        for place in range(len(self._endpoints)):
            yield self._endpoints[(first + place) % len(self._endpoints)]

    def _pass_over(self, endpoint: str) -> None:
        if self._endpoints[self._first] == endpoint:
            self._first = (self._first + 1) % len(self._endpoints)

    async def _ask(self, endpoint: str, path: str, body: bytes) -> bytes:
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                response = await self._post(endpoint, path, body)
                async with response:
                    return await response.read()
        except (NotAsked, Unanswered):
            self._pass_over(endpoint)
            raise
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._pass_over(endpoint)
            raise Unanswered(str(error) or "no answer in time") from error

    async def _post(self, endpoint: str, path: str, body: bytes) -> aiohttp.ClientResponse:
        """A response that is no error; with a new token if etcd no longer takes the old one."""
        if self._settings.username and not self._token:
            await self._authenticate(endpoint)
        try:
            return await self._post_once(endpoint, path, body)
        except Refused as refused:
            failure = refused.failure
            stale = failure.number == UNAUTHENTICATED or _OLD_TOKEN in failure.text
            if not (stale and self._settings.username):
                raise explained(failure) from None
        await self._authenticate(endpoint)
        try:
            return await self._post_once(endpoint, path, body)
        except Refused as refused:
            raise explained(refused.failure) from None

    async def _authenticate(self, endpoint: str) -> None:
        self._token = ""
        request = {"name": self._settings.username, "password": self._settings.password}
        body = msgspec.json.encode(request)
        try:
            async with await self._post_once(endpoint, "/v3/auth/authenticate", body) as response:
                self._token = _decoded(await response.read(), AuthReply).token
        except Refused as refused:
            raise explained(refused.failure) from None
        except Unanswered as unanswered:
            raise NotAsked(str(unanswered)) from unanswered

    async def _post_once(self, endpoint: str, path: str, body: bytes) -> aiohttp.ClientResponse:
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if self._token:
            headers["Authorization"] = self._token
        try:
            response = await self._session.post(
                f"{endpoint}{path}", data=BytesIO(body), headers=headers, **self._transport()
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotAsked(str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unanswered(str(error) or type(error).__name__) from error
        if response.status == 200:
            return response
        async with response:
            raise _failed(response.status, await response.read())

    def _transport(self) -> dict[str, Any]:
        return {} if self._settings.tls is None else {"ssl": self._settings.tls}


def explained(failure: Failure) -> MetadataError:
    """An error of etcd in the words of the metadata store."""
    if failure.number in _PASSING:
        return MetadataUnavailable(f"etcd did not answer ({failure.text})")
    if failure.number == NOT_FOUND and "lease" in failure.text:
        return LeaseLost()
    if failure.number in (PERMISSION_DENIED, UNAUTHENTICATED) or "auth" in failure.text:
        return MetadataError(
            f"etcd refuses this user ({failure.text}): check metadata.username and its password"
        )
    return MetadataError(f"etcd refused the request: {failure.text}", code=failure.number)


def check_passing(failure: Failure) -> None:
    """``Unanswered`` if the failure may pass."""
    if failure.number in _PASSING:
        raise Unanswered(failure.text)


def _failed(status: int, body: bytes) -> Exception:
    try:
        failure = msgspec.json.decode(body, type=Failure, strict=False)
    except msgspec.DecodeError:
        failure = Failure(message=f"HTTP status {status}")
        if status == 404:
            return MetadataError(
                "this etcd has no JSON gateway at /v3: use version 3.4 or later, without "
                "--enable-grpc-gateway=false"
            )
    if failure.number in _PASSING or (not failure.number and status >= 500):
        return Unanswered(failure.text)
    return Refused(failure)


def _decoded(body: bytes, reply: type[Reply]) -> Reply:
    try:
        return msgspec.json.decode(body, type=reply, strict=False)
    except msgspec.DecodeError as error:
        raise MetadataError(f"etcd sent an answer that Quiver cannot read: {error}") from error


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[Streamed, None]:
    waiting = b""
    try:
        async for chunk in response.content.iter_any():
            *whole, waiting = (waiting + chunk).split(b"\n")
            if len(waiting) > _LINE_BYTES_MAX:
                raise Unanswered(f"a line of more than {_LINE_BYTES_MAX:,} bytes")
            for line in whole:
                if line:
                    yield _decoded(line, Streamed)
    except (aiohttp.ClientError, OSError) as error:
        raise Unanswered(str(error) or "the connection broke") from error
    raise Unanswered("the stream ended")


def _socket(address: Any) -> socket.socket:
    """A socket that notices when the other side is gone without a word."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
