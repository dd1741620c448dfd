"""The yardstick: a Starlette handler that decodes a body with msgspec and answers, and no more.

It runs as ``python -m benchmarks.http.bare_starlette <ready file>``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.harness.child import Child, started


class _Body(msgspec.Struct):
    message: Any


_bodies = msgspec.json.Decoder(_Body)


async def _take(request: Request) -> Response:
    _bodies.decode(await request.body())
    return Response(b'{"id":"0"}', 201, media_type="application/json")


@contextmanager
def bare_starlette(folder: str) -> Iterator[Child]:
    """The yardstick as a child process."""
    ready_file = os.path.abspath(f"{folder}/starlette.json")
    with started(
        [sys.executable, "-m", "benchmarks.http.bare_starlette", ready_file], ready_file
    ) as child:
        yield child


async def _serve(ready_file: str) -> None:
    app = Starlette(routes=[Route("/queues/{queue}/messages", _take, methods=["POST"])])
    config = uvicorn.Config(app, port=0, http="httptools", access_log=False, log_level="critical")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    with open(f"{ready_file}.new", "w") as file:  # noqa: ASYNC230 - once, before it serves
        json.dump({"http": f"{host}:{port}", "native": f"{host}:{port}"}, file)
    os.replace(f"{ready_file}.new", ready_file)
    await serving


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
