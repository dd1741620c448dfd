"""The OpenAPI document, and the page that shows it."""

from __future__ import annotations

from collections.abc import Sequence

from quiver.console.pages import POLICY, Pages
from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.openapi import openapi_document
from quiver.edge.http.operation import JSON, Operation, Reply

PAGE_HEADERS = ((b"content-security-policy", POLICY.encode()), (b"referrer-policy", b"no-referrer"))
"""Only the node's own files run on its pages."""


def description_of(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The operations that describe the others, and themselves."""
    document = b""
    page = Pages().get("docs.html")

    async def describe_api(call: Call) -> Reply:
        return Reply(200, document)

    async def show_page(call: Call) -> Reply:
        return Reply(200, page.content, page.media_type, headers=PAGE_HEADERS)

    own = (
        Operation(
            method="GET",
            path="/openapi.json",
            id="describe_api",
            handler=describe_api,
            summary="This document.",
            tag="node",
            replies={200: ("OpenAPI 3.1.", {JSON: ()})},
            is_open=True,
            may_cache=True,
        ),
        Operation(
            method="GET",
            path="/docs",
            id="show_page",
            handler=show_page,
            summary="A page that lists all paths and lets you try a queue.",
            tag="node",
            replies={200: ("The page.", {"text/html": None})},
            is_open=True,
            may_cache=True,
        ),
    )
    document = encode(openapi_document((*operations, *own)))
    return own
