"""The client's lines go where the program's own logging sends them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from quiver.client.logger import logger


def test_lines_are_structured_where_structlog_is_configured() -> None:
    with capture_logs() as lines:
        logger.warning("messages wait", topic="orders")
    assert lines == [{"event": "messages wait", "topic": "orders", "log_level": "warning"}]


@pytest.mark.process
def test_a_program_without_logging_sees_lines_on_standard_error_only() -> None:
    program = (
        "from quiver.client.logger import logger; logger.warning('messages wait', topic='orders')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "messages wait (topic=orders)\n")
