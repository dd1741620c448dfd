"""What nobody foresaw: told to whoever looks after the event loop, and never the end of a node's work.

A node writes it to its log with the traceback; the simulator counts it as a finding.
"""

from __future__ import annotations

import asyncio


def tell_unexpected(what: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})
