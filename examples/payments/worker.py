"""The worker: asks the bank, and books each payment once. Run as many of them as there is work for."""

from __future__ import annotations

import os
import sqlite3
import sys

import quiver

TABLES = """
CREATE TABLE IF NOT EXISTS rates (currency TEXT PRIMARY KEY, euro REAL NOT NULL);
CREATE TABLE IF NOT EXISTS bookings (payment TEXT, euro REAL);
"""


class BankBusy(Exception):
    """The bank takes no calls now; later it will."""


class Bank:
    """Stands for a bank: busy at the first call for every fifth payment, and knows repetitions."""

    def __init__(self) -> None:
        self.calls = 0
        self._charged: set[str] = set()

    def charge(self, payment: str, euro: float, *, idempotency_key: str) -> None:
        self.calls += 1
        if self.calls % 5 == 0:
            raise BankBusy("the bank is busy")
        self._charged.add(idempotency_key)  # a second call with the same key charges nothing


def open_ledger(path: str) -> sqlite3.Connection:
    ledger = sqlite3.connect(path, timeout=30)
    ledger.executescript(TABLES)
    return ledger


def main(url: str, path: str) -> None:
    bank, ledger = Bank(), open_ledger(path)
    with quiver.idempotent(path, keep="30d") as once, quiver.Client(url) as q:

        @once
        def pay(message, work) -> None:
            payment = message.json()
            euro = payment["amount"] * euro_of(ledger, payment["currency"])
            # Elsewhere nothing can be undone: the key lets the bank tell a repetition.
            bank.charge(payment["id"], euro, idempotency_key=work.key)
            # Here it can: the booking and the memory of the message are one transaction.
            work.begin().execute("INSERT INTO bookings VALUES (?, ?)", (payment["id"], euro))

        for message in q.consume("payments"):
            try:
                pay(message)
            except Exception as error:
                name = message.key.decode()
                print(f"worker: try {message.deliveries} of {name}: {error}", flush=True)
                message.nack(error=str(error))  # again after the back-off, or a dead letter
            else:
                message.ack()


def euro_of(ledger: sqlite3.Connection, currency: str) -> float:
    row = ledger.execute("SELECT euro FROM rates WHERE currency = ?", (currency,)).fetchone()
    if row is None:
        raise LookupError(f"no rate for {currency}")
    return float(row[0])


if __name__ == "__main__":
    main(os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401"), sys.argv[1])
