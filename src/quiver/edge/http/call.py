"""An HTTP request while it is handled: its query, headers, caller and bounded body."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope

from quiver.aio import cancel_and_wait, first_of
from quiver.client import AsyncClient
from quiver.edge.http.clients import Credentials
from quiver.edge.http.compression import unpacked
from quiver.edge.http.json_text import decode
from quiver.edge.http.operation import JSON, Operation
from quiver.edge.http.problems import invalid
from quiver.errors import (
    BodyTooLarge,
    InvalidRequest,
    MalformedBody,
    MalformedRequest,
    NotAcceptable,
    ShuttingDown,
    UnsupportedMediaType,
)

if TYPE_CHECKING:
    from quiver.edge.http.edge import Edge

T = TypeVar("T")
Q = TypeVar("Q", bound=msgspec.Struct)
CURL_DEFAULT = "application/x-www-form-urlencoded"
"""The content type that curl sends by default; no path accepts forms."""
_QUERY_FIELDS_MAX = 20
TRANSACTION = "Quiver-Transaction"
"""The header of a request that is part of a transaction."""
_ONCE = (
    b"authorization",
    b"content-type",
    b"content-encoding",
    b"content-length",
    b"idempotency-key",
    b"quiver-transaction",
    b"host",
)


class ClientGone(Exception):
    """The client has disconnected."""


class Call:
    """``scope`` and ``receive`` are ASGI's. Nothing is parsed before it is needed."""

    __slots__ = ("_client", "edge", "fields", "is_gone", "operation", "path", "receive", "scope")

    def __init__(self, edge: Edge, operation: Operation, scope: Scope, receive: Receive) -> None:
        self.edge = edge
        self.operation = operation
        self.scope = scope
        self.receive = receive
        self.path: dict[str, str] = scope["path_params"]
        self.is_gone = False
        """Whether the client is known to have disconnected."""
        self._client: AsyncClient | None = None
        self.fields: dict[bytes, bytes] = fields_of(scope)

    def header(self, name: bytes) -> str:
        value = self.fields.get(name)
        return "" if value is None else value.decode("latin-1")

    @property
    def client(self) -> AsyncClient:
        assert self._client is not None, "only operations that are open to anybody have none"
        return self._client

    async def authenticate(self) -> None:
        if b"quiver-transaction" in self.fields and TRANSACTION not in self.operation.headers:
            raise InvalidRequest(
                f"this path takes no part in a transaction; leave {TRANSACTION} out",
                field=TRANSACTION,
            )
        self.edge.access.check(self.fields, self.scope["scheme"])
        self._client = await self.edge.clients.of(credentials_of(self.scope, self.fields))
        admit = (self.scope.get("state") or {}).get("admit")
        if admit is not None:
            admit()

    # ------------------------------------------------------------------ query

    def query(self, kind: type[Q]) -> Q:
        """The query as a struct. An unknown or repeated name is an error."""
        text = self.scope["query_string"]
        if not text:
            return kind()
        try:
            pairs = parse_qsl(
                text.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_QUERY_FIELDS_MAX,
            )
        except ValueError as error:
            raise InvalidRequest(f"the query string is not valid: {error}", field="query") from None
        given = dict(pairs)
        if len(given) != len(pairs):
            twice = next(name for name in given if [n for n, _ in pairs].count(name) > 1)
            raise InvalidRequest(f"{twice[:80]} is given twice; give it once", field=twice[:80])
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            raise invalid(error, document=given) from None

    # ------------------------------------------------------------------ body

    @property
    def media_type(self) -> str:
        return self.header(b"content-type").partition(";")[0].strip().lower()

    @property
    def has_body(self) -> bool:
        return (
            self.fields.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.fields
        )

    async def body(self) -> bytes:
        """The whole body, unpacked."""
        limit = self.edge.limits.body_bytes_max
        declared = self.fields.get(b"content-length", b"0")
        if len(declared) > 15 or int(declared) > limit:
            raise BodyTooLarge(
                f"the body has {self.header(b'content-length')[:30]} bytes, more than the "
                f"{limit:,} allowed"
            )
        message = await self._next_part()
        data: bytes = message.get("body", b"")
        if message.get("more_body"):
            data = await self._rest(data, limit)
        if len(data) > limit:
            raise BodyTooLarge(f"the body has more than the {limit:,} bytes allowed")
        encoding = self.fields.get(b"content-encoding")
        return data if encoding is None else await unpacked(data, encoding.decode("latin-1"), limit)

    async def _rest(self, first: bytes, limit: int) -> bytes:
        """What comes after the first part. How long it may take is the connection's to bound."""
        parts, size, more = [first], len(first), True
        while more:
            message = await self._next_part()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise BodyTooLarge(f"the body has more than the {limit:,} bytes allowed")
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _next_part(self) -> Any:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    async def json(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The body as JSON. A body without a content type counts as JSON."""
        if self.media_type not in (JSON, "", CURL_DEFAULT):
            raise UnsupportedMediaType(
                f"this path accepts {JSON}, not {self.media_type[:80]!r}", field="Content-Type"
            )
        return decode(decoder, await self.body())

    def require_no_body(self) -> None:
        if self.has_body:
            raise MalformedBody("this path accepts no body")

    # ------------------------------------------------------------------ what is asked for

    def accepts(self, *offered: str) -> str:
        """The first of the media types offered that the request accepts."""
        accepted = self.header(b"accept")
        if not accepted or accepted == "*/*":
            return offered[0]
        asked = [part.partition(";") for part in accepted.lower().split(",")]
        wanted = [
            name.strip() for name, _, rest in asked if rest.replace(" ", "") not in ("q=0", "q=0.0")
        ]
        for want in wanted:
            for offer in offered:
                if want in (offer, "*/*", offer.partition("/")[0] + "/*"):
                    return offer
        raise NotAcceptable(
            f"this path answers with {' or '.join(offered)}; set Accept accordingly", field="Accept"
        )

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something that takes time. It ends with the connection, or when the node stops."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await cancel_and_wait(task)
            raise
        if task.done():  # as most do: a queue with messages answers at once
            return task.result()
        with self.edge.requests.waiting():
            await first_of(task, self._disconnected(), self.edge.draining.wait())
        if not task.cancelled():
            return task.result()
        raise ShuttingDown if self.edge.draining.is_set() and not self.is_gone else ClientGone

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True


def fields_of(scope: Scope) -> dict[bytes, bytes]:
    """Headers by name. Those that are listed in ``_ONCE`` must not be repeated."""
    pairs = scope["headers"]
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        for name in _ONCE:
            if names.count(name) > 1:
                raise MalformedRequest(f"the header {name.decode()} is given twice; give it once")
        for name in fields:
            if names.count(name) > 1:
                fields[name] = b", ".join(value for each, value in pairs if each == name)
    return fields


def credentials_of(scope: Scope, fields: dict[bytes, bytes]) -> Credentials:
    authorization = fields.get(b"authorization")
    state: dict[str, Any] = scope.get("state") or {}
    client = scope.get("client")
    return Credentials(
        None if authorization is None else authorization.decode("latin-1"),
        state.get("certificate"),
        client[0] if client else "",
    )
