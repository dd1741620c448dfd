"""``quiver token``: manage tokens, on a node or in the data folder of a stopped one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Protocol, TypeVar

import typer

from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import print_json, print_line, print_listing
from quiver.cli.support.session import UrlFlag, connected_async
from quiver.cli.support.text import harmless, shown_time
from quiver.model.units import Duration, seconds
from quiver.protocol import TokenInfo

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DataFlag = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="Data folder of a stopped node, instead of --url."),
]


class Tokens(Protocol):
    """A store of tokens: a node, or a data folder."""

    async def create_token(
        self,
        name: str,
        grants: Sequence[str],
        *,
        expires: Duration | None = None,
        certificate: bool = False,
    ) -> tuple[TokenInfo, str | None]: ...

    async def list_tokens(self) -> list[TokenInfo]: ...

    async def revoke_token(self, token_id: str) -> None: ...


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the token's owner.", show_default=False)],
    grant: Annotated[
        list[str] | None,
        typer.Option(
            "--grant",
            metavar="GRANT",
            help="A permission, as in publish:orders.*. May be repeated.",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="Time until the token expires, as in 30d."),
    ] = None,
    certificate: Annotated[
        bool,
        typer.Option(
            "--certificate", help="Give the grants to client certificates of this name: no token."
        ),
    ] = False,
    json: Json = False,
    data: DataFlag = None,
    url: UrlFlag = None,
) -> None:
    """Create a token and print it. It cannot be shown again."""
    if not grant:
        raise typer.BadParameter("give at least one --grant, as in --grant 'publish:orders.*'")
    if expires is not None:
        seconds(expires)  # a mistake is told before connecting

    async def made() -> tuple[TokenInfo, str | None]:
        async with _tokens(context, url, data) as tokens:
            return await tokens.create_token(name, grant, expires=expires, certificate=certificate)

    info, token = _run(made())
    if json:
        print_json({"token": token, "info": info})
    elif token is None:
        tell(f"client certificates of {name} now have these grants (id {info.id})")
    else:
        print_line(token)
        tell(f"save the token: it cannot be shown again. Its id is {info.id}")


@app.command("list")
def list_(
    context: typer.Context, json: Json = False, data: DataFlag = None, url: UrlFlag = None
) -> None:
    """List tokens, without their secrets."""

    async def found() -> list[TokenInfo]:
        async with _tokens(context, url, data) as tokens:
            return await tokens.list_tokens()

    tokens = _run(found())
    print_listing(
        tokens,
        json=json,
        none="there are no tokens yet; create one with: quiver token create NAME --grant GRANT",
        columns=("ID", "NAME", "GRANTS", "CREATED", "EXPIRES", "STATE"),
        row=lambda one: (
            one.id,
            harmless(one.name) + (" (certificate)" if one.is_certificate else ""),
            " ".join(one.grants),
            shown_time(one.created_us)[:19] + "Z",
            "never" if one.expires_us is None else shown_time(one.expires_us)[:19] + "Z",
            "revoked" if one.revoked_us is not None else "",
        ),
    )


@app.command()
def revoke(
    context: typer.Context,
    token_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Id of the token, from quiver token list.", show_default=False
        ),
    ],
    data: DataFlag = None,
    url: UrlFlag = None,
) -> None:
    """Revoke a token. It stops working at once, on open connections too."""

    async def done() -> None:
        async with _tokens(context, url, data) as tokens:
            await tokens.revoke_token(token_id)

    _run(done())
    tell(f"revoked {token_id}")


def _run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio  # noqa: PLC0415 - help does not need it

    return asyncio.run(work)


@asynccontextmanager
async def _tokens(
    context: typer.Context, url: str | None, data: str | None
) -> AsyncIterator[Tokens]:
    if data is None:
        async with connected_async(context, url) as client:
            yield client
        return
    from quiver.edge.auth.offline import tokens_in  # noqa: PLC0415 - only where it is needed

    async with tokens_in(data) as store:
        yield store
