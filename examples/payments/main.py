"""Sends payments to the web app, lets one of them fail for good, repairs the fault and redrives it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

import uvicorn
from app import QUEUE, app
from worker import open_ledger

import quiver

URL = os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401")
WAIT_S = 60


def post(port: int, payment: dict[str, object]) -> float:
    """Send a payment to the web app; how long it took to answer, in milliseconds."""
    request = Request(f"http://127.0.0.1:{port}/payments", json.dumps(payment).encode())
    began = time.perf_counter()
    with urlopen(request, timeout=WAIT_S) as response:
        assert response.status == 202
    return (time.perf_counter() - began) * 1000


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("nothing happens; is the node running? (make run)")
        time.sleep(0.05)


@contextmanager
def web_app() -> Iterator[int]:
    """The web app on a free port, as ``uvicorn app:app`` would serve it."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        if not server.started:
            sys.exit("the web app did not start; is the node running? (make run)")
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(WAIT_S)


def run(q: quiver.Client, path: str) -> None:
    with web_app() as port, closing(open_ledger(path)) as ledger:
        ledger.execute("INSERT INTO rates VALUES ('EUR', 1.0), ('USD', 0.9)")
        ledger.commit()
        worker = subprocess.Popen([sys.executable, Path(__file__).with_name("worker.py"), path])
        try:
            pay(q, ledger, port)
        finally:
            worker.kill()
            worker.wait()


def pay(q: quiver.Client, ledger, port: int) -> None:
    batch = secrets.token_hex(3)  # so that the example can be run again

    def booked() -> int:
        mine = "SELECT count(*) FROM bookings WHERE payment LIKE ?"
        return int(ledger.execute(mine, (f"{batch}-%",)).fetchone()[0])

    payments = [
        {"id": f"{batch}-{n}", "amount": 10 + n, "currency": "EUR" if n % 2 else "USD"}
        for n in range(8)
    ]
    poison = {"id": f"{batch}-yen", "amount": 5000, "currency": "JPY"}
    took_ms = [post(port, payment) for payment in [*payments, poison, payments[0]]]
    print(f"web app: {len(took_ms)} answers, the slowest after {max(took_ms):.0f} ms")

    chosen = f"last_error = 'no rate for JPY' and key = '{poison['id']}'"
    wait_for(lambda: booked() == 8 and q.redrive(QUEUE, filter=chosen, dry_run=True) == 1)
    print(f"ledger: {booked()} payments booked, the one that was sent twice once")
    letter = next(one for one in q.peek(f"{QUEUE}.dlq", 1000) if one.json() == poison)
    print(f"dead letter: {letter.json()}")

    ledger.execute("INSERT INTO rates VALUES ('JPY', 0.006)")  # somebody repairs the fault
    ledger.commit()
    print(f"redriven: {q.redrive(QUEUE, filter=chosen)}")
    wait_for(lambda: booked() == 9)
    (total,) = ledger.execute("SELECT sum(euro) FROM bookings").fetchone()
    print(f"ledger: {booked()} payments booked, {total:.2f} euro")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, quiver.Client(URL) as q:
        run(q, str(Path(folder) / "ledger.db"))
