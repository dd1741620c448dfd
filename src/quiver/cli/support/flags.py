"""Flags that several commands share: attributes of a class with defaults, or parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, get_type_hints

Command = Callable[..., None]


def with_flags(*tables: type | list[Parameter]) -> Callable[[Command], Command]:
    """Add these flags to a command, before its keyword-only parameters.

    Their values are in ``context.params``.
    """
    flags = [
        flag
        for table in tables
        for flag in (_declared_in(table) if isinstance(table, type) else table)
    ]

    def add(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters

        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(**{name: values[name] for name in own})

        last = [one for one in own.values() if one.kind is Parameter.KEYWORD_ONLY]
        first = [one for one in own.values() if one not in last]
        run.__signature__ = Signature([*first, *flags, *last])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*first, *flags, *last)}
        return run

    return add


def _declared_in(table: type) -> list[Parameter]:
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(table, name), annotation=hint)
        for name, hint in get_type_hints(table, include_extras=True).items()
    ]
