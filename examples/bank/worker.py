"""The worker of a bank: each transfer becomes two entries, in one step with the end of its order."""

from __future__ import annotations

import os
import sys

import quiver

URL = os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401")


def book(q: quiver.Client, order: quiver.ReceivedMessage, name: str) -> None:
    """Take from one account, give to another and finish the order: all three, or nothing."""
    transfer = order.json()
    with q.transaction(name) as tx:
        for account, cents in (
            (transfer["from"], -transfer["cents"]),
            (transfer["to"], transfer["cents"]),
        ):
            entry = {"transfer": transfer["id"], "account": account, "cents": cents}
            tx.publish("bank.entries", entry, key=account)
        tx.ack(order)


def work(name: str) -> None:
    with quiver.Client(URL) as q:
        for order in q.consume("bank.transfers"):
            try:
                book(q, order, name)
            except quiver.TransactionFenced:
                sys.exit("another worker has this name")
            except (quiver.TransactionError, quiver.StaleReceipt, quiver.Unavailable) as error:
                print(f"the transfer comes again, unless it was booked: {error}", file=sys.stderr)


if __name__ == "__main__":
    work(sys.argv[1])
