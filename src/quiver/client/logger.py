"""The client's log. A library does not print: the program's own logging says where lines go.

Where nobody has configured structlog, they go to the logger ``quiver`` of the standard library. Its
warnings are seen on standard error unless the program says otherwise.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

_standard = logging.getLogger("quiver")


class ClientLogger:
    def warning(self, event: str, **fields: Any) -> None:
        if structlog.is_configured():
            structlog.get_logger().warning(event, **fields)
        else:
            details = ", ".join(f"{name}={value}" for name, value in fields.items())
            _standard.warning("%s (%s)", event, details)


logger = ClientLogger()
