"""The web app: takes payments, and answers before anything was asked of the bank."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import quiver

QUEUE = "payments"
BODY_BYTES_MAX = 10_000


def create_queue(q: quiver.Client) -> None:
    """Three tries, a moment apart; what fails three times goes to the dead letters."""
    q.create_queue(
        QUEUE,
        visibility="10s",
        max_deliveries=3,
        backoff={"min": "100ms", "max": "1s"},
        exist_ok=True,
    )


def web_app(q: quiver.Client, port: int = 0) -> ThreadingHTTPServer:
    """A server for ``POST /payments`` with ``{"id": …, "amount": …, "currency": …}``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if self.path != "/payments" or size > BODY_BYTES_MAX:
                self.answer(404, {"error": "POST /payments, and not much"})
                return
            try:
                payment = json.loads(self.rfile.read(size))
                payment_id = str(payment["id"])
            except (ValueError, KeyError, TypeError):
                self.answer(400, {"error": "a payment is JSON with an id"})
                return
            # Stored on disk when this returns. A form that is sent twice is stored once.
            published = q.publish(QUEUE, payment, key=payment_id, dedup_id=payment_id)
            self.answer(202, {"payment": payment_id, "message": published.id})

        def answer(self, status: int, document: dict[str, str]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The example says itself what happens."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
