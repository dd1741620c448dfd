"""The OpenAPI document, and the page that shows it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources

from quiver.edge.http.call import Call
from quiver.edge.http.edge import encode
from quiver.edge.http.openapi import openapi_document
from quiver.edge.http.operation import JSON, Operation, Reply

_HTML = "text/html; charset=utf-8"


def description_of(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The operations that describe the others, and themselves."""
    document = b""
    page = resources.files(__package__).joinpath("docs.html").read_text("utf-8")
    policy = _policy(page).encode()

    async def describe_api(call: Call) -> Reply:
        return Reply(200, document)

    async def show_page(call: Call) -> Reply:
        return Reply(200, page.encode(), _HTML, headers=((b"content-security-policy", policy),))

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


def _policy(page: str) -> str:
    """Only the page's own script and style run, and they can reach only this node."""
    sums = {}
    for kind in ("script", "style"):
        found = re.search(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert found is not None, f"the page has one {kind}"
        digest = hashlib.sha256(found[1].encode()).digest()
        sums[kind] = f"'sha256-{base64.b64encode(digest).decode()}'"
    return (
        f"default-src 'none'; connect-src 'self'; script-src {sums['script']}; "
        f"style-src {sums['style']}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
