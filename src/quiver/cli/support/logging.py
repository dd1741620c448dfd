"""How a node writes about itself: lines for people on a terminal, JSON for collectors elsewhere.

Everything goes to standard error. Libraries that use the standard ``logging`` are written the same
way, so that one format comes out.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from quiver.config import Logging


def set_up_logging(
    settings: Logging, stream: TextIO | None = None, *, process: int | None = None
) -> None:
    """From now on, log as the settings say. Each line carries the number of the ``process``, if given."""
    output = sys.stderr if stream is None else stream
    is_pretty = settings.format == "pretty" or (settings.format == "auto" and output.isatty())
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        *([] if process is None else [_numbered(process)]),
    ]
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(is_pretty, output),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _numbered(process: int) -> structlog.typing.Processor:
    def add(
        _: structlog.typing.WrappedLogger, __: str, fields: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        return {**fields, "process": process}

    return add


def _renderers(is_pretty: bool, output: TextIO) -> list[structlog.typing.Processor]:
    if is_pretty:
        return [structlog.dev.ConsoleRenderer(colors=output.isatty())]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        _in_order,
        structlog.processors.JSONRenderer(),
    ]


def _in_order(
    _: structlog.typing.WrappedLogger, __: str, fields: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """A line begins with what every line has: its time, its level and what happened."""
    return {name: fields[name] for name in (*_FIRST, *fields) if name in fields}


_FIRST = ("timestamp", "level", "message")
