"""The web app: takes payments, and answers before anything was asked of the bank."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import quiver

URL = os.environ.get("QUIVER_URL", "quiver://127.0.0.1:7401")
QUEUE = "payments"


@asynccontextmanager
async def connected(app: Starlette) -> AsyncIterator[None]:
    """Three tries, a moment apart; what fails three times goes to the dead letters."""
    async with quiver.AsyncClient(URL) as q:
        retries = {"max_deliveries": 3, "backoff": {"min": "100ms", "max": "1s"}}
        await q.create_queue(QUEUE, visibility="10s", exist_ok=True, **retries)
        app.state.q = q
        yield


async def take_payment(request: Request) -> JSONResponse:
    """``POST /payments`` with ``{"id": …, "amount": …, "currency": …}``."""
    try:
        payment = json.loads(await request.body())
        payment_id = str(payment["id"])
    except (ValueError, KeyError, TypeError):
        return JSONResponse({"error": "a payment is JSON with an id"}, 400)
    # Stored on disk when this returns. A form that is sent twice is stored once.
    published = await request.app.state.q.publish(
        QUEUE, payment, key=payment_id, dedup_id=payment_id
    )
    return JSONResponse({"payment": payment_id, "message": published.id}, 202)


app = Starlette(routes=[Route("/payments", take_payment, methods=["POST"])], lifespan=connected)
