"""The OpenAPI 3.1 document, generated from the operations and their structs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quiver.edge.http.operation import Operation
from quiver.edge.http.problems import PROBLEM, RETRY_AFTER_S, Problem, problem_of, status_of
from quiver.edge.http.schemas.examples import EXAMPLES
from quiver.edge.http.schemas.messages import Messages
from quiver.edge.http.schemas.values import MessageIdText, Name, Receipt, TransactionText
from quiver.errors import (
    AccessRefused,
    HeadersTooLarge,
    MalformedRequest,
    Overloaded,
    QuiverError,
    RequestTimeout,
    ShuttingDown,
    Unauthenticated,
    Unavailable,
)
from quiver.version import __version__

_REF = "#/components/schemas/{name}"
_EVERYWHERE = (MalformedRequest, HeadersTooLarge)
_WITH_A_CLIENT = (
    Unauthenticated,
    AccessRefused,
    ShuttingDown,
    Overloaded,
    Unavailable,
    RequestTimeout,
)
_PATH_TYPES = {
    "receipt_handle": Receipt,
    "id": MessageIdText,
    "transaction": TransactionText,
}
_BYTES = {"type": "string", "contentMediaType": "application/octet-stream"}
_DESCRIPTION = """\
Quiver is a message queue whose log is Apache Arrow. Every error is a problem document (RFC 9457)
with a stable `code`. Requests and replies may be compressed with gzip or zstd. The HTTP reference
describes the WebSocket at `/subscriptions/{name}/stream`.
"""


def openapi_document(operations: Sequence[Operation]) -> dict[str, Any]:
    schemas = _Schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _operation(operation, schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quiver", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


class _Schemas:
    """The schemas of every struct, once each."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        types: dict[str, Any] = {"Problem": Problem}
        for operation in operations:
            contents = [operation.body, *(content for _, content in operation.replies.values())]
            for content in contents:
                for given in content.values():
                    types |= {_name(one): one for one in _several(given)}
        schemas, self.components = msgspec.json.schema_components(types.values(), ref_template=_REF)
        self._by_name = dict(zip(types, schemas, strict=True))

    def of(self, given: Any) -> dict[str, Any]:
        several = [self._by_name[_name(one)] for one in _several(given)]
        return several[0] if len(several) == 1 else {"anyOf": several}

    def content(self, by_type: dict[str, Any]) -> dict[str, Any]:
        return {media: self._media(given) for media, given in by_type.items()}

    def _media(self, given: Any) -> dict[str, Any]:
        if not given:
            return {"schema": {"type": "object"} if given == () else _BYTES}
        examples = {_name(one): {"value": EXAMPLES[_name(one)]} for one in _several(given)}
        return {"schema": self.of(given), "examples": examples}


def _several(given: Any) -> tuple[Any, ...]:
    return () if given is None else given if isinstance(given, tuple) else (given,)


def _name(one: Any) -> str:
    return "Messages" if one is Messages else str(one.__name__)


def _operation(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*_path_parameters(operation), *_query(operation), *_headers(operation)],
        "responses": _responses(operation, schemas),
    }
    if operation.body:
        content = schemas.content(operation.body)
        described["requestBody"] = {"required": operation.needs_body, "content": content}
    if operation.is_open:
        described["security"] = []
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": msgspec.json.schema(_PATH_TYPES.get(name, Name)),
        }
        for name in names
    ]


def _query(operation: Operation) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    _, components = msgspec.json.schema_components([operation.query], ref_template=_REF)
    schema = components[operation.query.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema["required"],
            "schema": _without_null(given),
        }
        for name, given in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is left out, never null."""
    if "anyOf" not in schema:
        return schema
    kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _headers(operation: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": sentence,
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
        }
        for name, sentence in operation.headers.items()
    ]


def _responses(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, (sentence, content) in operation.replies.items():
        responses[str(status)] = {"description": sentence}
        if content:
            responses[str(status)]["content"] = schemas.content(content)
    if operation.may_cache:
        responses["304"] = {"description": "Not modified since the version in `If-None-Match`."}
    kinds = [*operation.errors, *_EVERYWHERE, *(() if operation.is_open else _WITH_A_CLIENT)]
    by_status: dict[int, list[type[QuiverError]]] = {}
    for kind in dict.fromkeys(kinds):
        by_status.setdefault(status_of(kind), []).append(kind)
    for status, of_status in sorted(by_status.items()):
        responses[str(status)] = _problems(of_status, schemas)
    responses["default"] = _problems([QuiverError], schemas)
    return responses


def _problems(kinds: list[type[QuiverError]], schemas: _Schemas) -> dict[str, Any]:
    codes = ", ".join(f"`{kind.code}`" for kind in kinds)
    examples = {kind.code: {"value": msgspec.to_builtins(problem_of(kind()))} for kind in kinds}
    response: dict[str, Any] = {
        "description": f"A problem with the code {codes}.",
        "content": {PROBLEM: {"schema": schemas.of(Problem), "examples": examples}},
    }
    if any(problem_of(kind()).retry_after for kind in kinds):
        response["headers"] = {
            "Retry-After": {
                "description": "Seconds after which to try again.",
                "schema": {"type": "integer", "minimum": RETRY_AFTER_S},
            }
        }
    return response
