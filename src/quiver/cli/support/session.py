"""The connection that a command works with.

The client library is imported here, when a command connects, so that help and usage errors are fast.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from quiver.cli.support.exit_codes import Unreachable
from quiver.errors import ConnectionLost, RequestTimeout

if TYPE_CHECKING:
    from quiver import AsyncClient, Client

DEFAULT_URL = "quiver://127.0.0.1:7401"

UrlFlag = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="URL of the node.", show_default=False),
]


def url_of(context: typer.Context, url: str | None) -> str:
    """The URL given after the command's name, else the one before it, else the default."""
    return url or context.find_root().params.get("url") or DEFAULT_URL


@contextmanager
def connected(context: typer.Context, url: str | None) -> Iterator[Client]:
    """A client whose node has answered; raises ``Unreachable`` if none does."""
    from quiver import Client  # noqa: PLC0415 - it takes longer to load than help

    with Client(url_of(context, url)) as client:
        try:
            client.describe_node()
        except (ConnectionLost, RequestTimeout) as error:
            raise Unreachable(error.message) from error
        yield client


@asynccontextmanager
async def connected_async(context: typer.Context, url: str | None) -> AsyncIterator[AsyncClient]:
    """An ``AsyncClient`` whose node has answered; raises ``Unreachable`` if none does."""
    from quiver import AsyncClient  # noqa: PLC0415 - as above

    async with AsyncClient(url_of(context, url)) as client:
        try:
            await client.describe_node()
        except (ConnectionLost, RequestTimeout) as error:
            raise Unreachable(error.message) from error
        yield client
