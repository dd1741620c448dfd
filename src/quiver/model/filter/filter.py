"""A filter: parsed and checked text, ready for any number of batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from quiver.model.filter.column import EXTRA_COLUMNS
from quiver.model.filter.evaluation import Matcher, cost_of, matcher_of
from quiver.model.filter.expression import columns_in, text_of
from quiver.model.filter.lexer import tokens_of
from quiver.model.filter.mistake import Mistake, invalid_filter
from quiver.model.filter.parser import expression_of
from quiver.model.filter.rows import Mask, Rows
from quiver.model.schema import COLUMN_BIT
from quiver.model.subscription import FILTER_LENGTH_MAX

_ROW_S, _BYTE_S = 20e-9, 1e-9
"""What a test of equality takes for each message, and for each byte of its text."""
_NOTHING: Mapping[str, pa.Array] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages are wanted. Made by ``parse_filter``; two are equal if they say the same."""

    text: str
    """The canonical text, which parses to an equal filter."""
    columns: int = field(compare=False)
    """The stored columns it reads, as bits of ``COLUMN_BIT``; 0 if it reads none."""
    extras: frozenset[str] = field(compare=False)
    """The other columns it reads (``offset``, ``timestamp``, …), which its user has to supply."""
    cost: int = field(compare=False)
    """What its tests cost together, in tests of equality."""
    _matcher: Matcher = field(compare=False, repr=False)

    def mask(self, rows: pa.RecordBatch, extra: Mapping[str, pa.Array] = _NOTHING) -> Mask:
        """True for each message that matches.

        ``extra`` has columns that are not stored in the batch, of the same length. A column that is
        in neither is null.
        """
        if rows.num_rows == 0:
            return Rows(rows, extra).none()
        return self._matcher(Rows(rows, extra))

    def seconds(self, rows: pa.RecordBatch) -> float:
        """About how long ``mask`` takes at most: long texts and many tests cost most."""
        if not self.cost:
            return 0.0
        names = (name for name, bit in COLUMN_BIT.items() if self.columns & bit)
        size: int = sum(rows.column(name).nbytes for name in names if name in rows.schema.names)
        row_count: int = rows.num_rows
        return self.cost * (row_count * _ROW_S + size * _BYTE_S)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_filter, (self.text,)


def parse_filter(text: str) -> Filter:
    """The filter that the text describes; ``InvalidFilter`` shows the place of a mistake."""
    try:
        return _parsed(text)
    except Mistake as mistake:
        raise invalid_filter(text, mistake) from None


def _parsed(text: str) -> Filter:
    if len(text) > FILTER_LENGTH_MAX:
        raise Mistake(
            FILTER_LENGTH_MAX,
            f"a filter has at most {FILTER_LENGTH_MAX:,} characters, not {len(text):,}",
        )
    _check_unicode(text)
    expression = expression_of(tokens_of(text))
    canonical = text_of(expression)
    if len(canonical) > FILTER_LENGTH_MAX:
        raise Mistake(
            len(text),
            f"in its normal form the filter has {len(canonical):,} characters; "
            f"{FILTER_LENGTH_MAX:,} are allowed",
        )
    used = frozenset(column.name for column in columns_in(expression))
    extras = used & EXTRA_COLUMNS
    columns = sum(COLUMN_BIT[name] for name in used - extras)
    return Filter(canonical, columns, extras, cost_of(expression), matcher_of(expression))


def _check_unicode(text: str) -> None:
    """Half of a surrogate pair can stand in a ``str``, but not in anything stored."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Mistake(
            error.start, "this is half a character: the text is not valid Unicode"
        ) from None
