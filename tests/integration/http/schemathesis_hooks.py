"""Loaded by Schemathesis: a wait that is valid is made short, so that a run is. No mirror connects."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import schemathesis


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    query = case.query if isinstance(case.query, dict) else {}
    with suppress(TypeError, ValueError):
        if 0 < float(query.get("wait", 0)) <= 20:
            query["wait"] = "0.01"
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("source"), str) and "paused" not in body:
        body["paused"] = True
