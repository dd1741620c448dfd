"""Sign-ups put e-mails into a queue, some for later; a mailer sends them."""

from __future__ import annotations

import os
import secrets
import sys
import time

import quiver

URL = os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401")
QUEUE = "signup-mails"
TIP_AFTER = "2s"  # three days, in a real shop
TRIES = 2
WAIT_S = 60


def sign_up(q: quiver.Client, address: str) -> str:
    """Store both e-mails; the id of the one for later."""
    q.publish(QUEUE, {"to": address, "subject": "Welcome"}, priority=9)
    return q.publish(QUEUE, {"to": address, "subject": "A tip"}, delay=TIP_AFTER).id


def send(mail: dict[str, str]) -> None:
    """Stands for a mail server."""
    if mail["to"].startswith("gone"):
        raise ConnectionError("mailbox unavailable")
    print(f"sent: {mail['subject']} to {mail['to']}")


def mailer(q: quiver.Client, run: str, expected: int) -> None:
    """Send what comes, until so much of this run is sent or given up."""
    deadline = time.monotonic() + WAIT_S
    while expected:
        if time.monotonic() > deadline:
            sys.exit(f"{expected} e-mails did not come")
        for message in q.receive(QUEUE, 10, wait="1s"):
            mail = message.json()
            try:
                send(mail)
            except ConnectionError as error:
                message.nack(error=str(error))
                if message.deliveries < TRIES:
                    continue
                print(f"given up: {mail['subject']} to {mail['to']}, now a dead letter")
            else:
                message.ack()
            expected -= run in mail["to"]


if __name__ == "__main__":
    with quiver.Client(URL) as q:
        q.create_queue(QUEUE, max_deliveries=TRIES, backoff={"min": "100ms"}, exist_ok=True)
        run = secrets.token_hex(3)
        for name in ("ada", "bob", "gone"):
            sign_up(q, f"{name}@{run}.example")
        tip = sign_up(q, f"eve@{run}.example")
        print(f"cancelled: {q.cancel(QUEUE, tip)} tip for eve, who left")
        mailer(q, run, expected=7)  # four welcomes and three tips
