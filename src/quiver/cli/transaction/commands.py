"""``quiver transaction``: list transactions that are open, describe one, and abort one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quiver.cli.support.exit_codes import tell
from quiver.cli.support.output import Json, print_json, print_listing
from quiver.cli.support.session import UrlFlag, connected
from quiver.cli.support.text import shown_duration
from quiver.model.transaction import TransactionState

if TYPE_CHECKING:
    from quiver.client.blocking.client import Client
    from quiver.protocol import OpenTransactionInfo

app = typer.Typer(no_args_is_help=True, help="List, describe and abort transactions.")

Id = Annotated[
    int,
    typer.Argument(metavar="ID", min=1, help="Number of the transaction.", show_default=False),
]


@app.command("list")
def list_(
    context: typer.Context,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC...", help="Topics to look at. [default: all]"),
    ] = None,
    json: Json = False,
    url: UrlFlag = None,
) -> None:
    """List open transactions, and the partitions whose readers wait for them.

    One that has only received messages so far is not listed.
    """
    with connected(context, url) as client:
        opened = _opened(client, topics or [topic.name for topic in client.list_topics()])
    now_us = time.time_ns() // 1000
    found: list[dict[str, Any]] = [
        {
            "transaction": one.transaction,
            "topic": topic,
            "partition": partition,
            "age_s": max(0, now_us - one.since_us) / 1e6,
            "first_offset": one.first_offset,
        }
        for topic, partition, one in sorted(opened, key=lambda row: row[2].since_us)
    ]
    print_listing(
        found,
        json=json,
        none="no transaction is open",
        columns=("TRANSACTION", "TOPIC", ">PARTITION", ">AGE", ">FIRST OFFSET"),
        row=lambda one: (
            one["transaction"],
            one["topic"],
            one["partition"],
            shown_duration(round(one["age_s"], 1)),
            f"{one['first_offset']:,}",
        ),
    )


def _opened(client: Client, topics: list[str]) -> list[tuple[str, int, OpenTransactionInfo]]:
    return [
        (name, partition.index, one)
        for name in topics
        for partition in client.describe_topic(name).partitions
        for one in partition.open_transactions
    ]


@app.command()
def describe(
    context: typer.Context, transaction: Id, json: Json = False, url: UrlFlag = None
) -> None:
    """Show whether a transaction is open, committed or aborted. It is known for an hour at least."""
    with connected(context, url) as client:
        state = client.describe_transaction(transaction)
    if json:
        print_json({"transaction": transaction, "state": state})
    else:
        tell(f"transaction {transaction} is {state}")


@app.command()
def abort(context: typer.Context, transaction: Id, json: Json = False, url: UrlFlag = None) -> None:
    """Abort a transaction whose client is gone or stuck. Its client cannot commit it any more."""
    with connected(context, url) as client:
        client.abort_transaction(transaction)
    if json:
        print_json({"transaction": transaction, "state": TransactionState.ABORTED})
    else:
        tell(f"aborted transaction {transaction}")
