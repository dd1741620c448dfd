"""A filter as a tree of tests, without any ``not``: negation is pushed into the tests themselves.

This keeps SQL's three-valued logic and makes evaluation two-valued. ``not priority > 5`` is
``priority <= 5``, which like its opposite is not true of null; and of ``and`` and ``or`` a reader only
needs to know whether they are true, which depends only on whether their parts are.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quiver.model.filter.column import Column, quoted
from quiver.model.filter.literal import Value, literal_of

OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class Constant(msgspec.Struct, frozen=True):
    is_true: bool


class Comparison(msgspec.Struct, frozen=True):
    column: Column
    operator: str
    value: Value


class OneOf(msgspec.Struct, frozen=True):
    column: Column
    values: tuple[Value, ...]
    is_negated: bool = False


class Likeness(msgspec.Struct, frozen=True):
    column: Column
    pattern: str
    is_negated: bool = False


class Nullness(msgspec.Struct, frozen=True):
    column: Column
    is_negated: bool = False


class All(msgspec.Struct, frozen=True):
    """True if every part is; there are at least two."""

    parts: tuple[Expression, ...]


class Either(msgspec.Struct, frozen=True):
    """True if any part is; there are at least two."""

    parts: tuple[Expression, ...]


Test = Comparison | OneOf | Likeness | Nullness
Expression = Constant | Comparison | OneOf | Likeness | Nullness | All | Either


def joined(kind: type[All] | type[Either], parts: list[Expression]) -> Expression:
    """The parts under one ``and`` or one ``or``; a part alone is itself."""
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def negated(expression: Expression) -> Expression:
    """What is true exactly where the expression is false; where it is null, so is this."""
    match expression:
        case Constant(is_true):
            return Constant(not is_true)
        case Comparison(column, operator, value):
            return Comparison(column, OPPOSITE[operator], value)
        case All(parts):
            return joined(Either, [negated(part) for part in parts])
        case Either(parts):
            return joined(All, [negated(part) for part in parts])
        case _:
            return msgspec.structs.replace(expression, is_negated=not expression.is_negated)


def columns_in(expression: Expression) -> Iterator[Column]:
    match expression:
        case Constant():
            return
        case All(parts) | Either(parts):
            for part in parts:
                yield from columns_in(part)
        case _:
            yield expression.column


def text_of(expression: Expression) -> str:
    """The canonical text, which parses to the same expression."""
    match expression:
        case Constant(is_true):
            return "true" if is_true else "false"
        case All(parts):
            return " and ".join(
                f"({text_of(part)})" if isinstance(part, Either) else text_of(part)
                for part in parts
            )
        case Either(parts):
            return " or ".join(text_of(part) for part in parts)
        case _:
            return _test_text(expression)


def _test_text(test: Test) -> str:
    column = test.column
    match test:
        case Comparison(_, operator, value):
            return f"{column} {operator} {literal_of(value, column)}"
        case OneOf(_, values, is_negated):
            listed = ", ".join(literal_of(value, column) for value in values)
            return f"{column} {'not ' if is_negated else ''}in ({listed})"
        case Likeness(_, pattern, is_negated):
            return f"{column} {'not ' if is_negated else ''}like {quoted(pattern)}"
        case Nullness(_, is_negated):
            return f"{column} is {'not ' if is_negated else ''}null"
