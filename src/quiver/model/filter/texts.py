"""The rows of a batch by the text in one of its columns, or in one of its headers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from quiver.model.filter.column import Column
from quiver.model.filter.rows import Mask, Rows


def rows_by_text(batch: pa.RecordBatch, what: str) -> dict[str, Mask]:
    """The rows of each text of ``key`` or ``headers.NAME``; rows that have none are left out."""
    name, _, header = what.partition(".")
    texts = Rows(batch, {}).texts(Column(name, header or None))
    if texts is None:
        return {}
    values, places = texts.values, texts.places
    if places is None:
        places = np.arange(len(values))
    if texts.valid is not None:
        values, places = values.filter(pa.array(texts.valid)), places[texts.valid]
    encoded = values.dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary))).tolist()
    names = [_text(value) for value in encoded.dictionary.to_pylist()]
    return {
        name: np.sort(places[order[start:end]])
        for name, (start, end) in zip(names, pairwise([0, *ends]), strict=True)
    }


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")
