"""The values in requests that several schemas share: names, times, keys and receipts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from quiver.client.transaction.reference import TEXT_LENGTH_MAX
from quiver.edge.http import text_forms
from quiver.model.guard import DEDUP_ID_MAX
from quiver.model.subscription import VISIBILITY_S_MAX
from quiver.model.topic import NAME_PATTERN

_YEAR_S = 366 * 86_400
Name = Annotated[
    str,
    Meta(
        pattern=NAME_PATTERN,
        description="1 to 200 letters, digits, '.', '_' or '-'.",
        examples=["emails"],
    ),
]
SizeText = Annotated[str, Meta(pattern=text_forms.SIZE, examples=["10GB"])]
Seconds = Annotated[float, Meta(ge=0, le=_YEAR_S)]
DurationText = Annotated[str, Meta(pattern=text_forms.DURATION, examples=["1h"])]
Delay = Annotated[
    Seconds | DurationText, Meta(description="Seconds, or text such as '1h'.", examples=[3600])
]
Rest = Annotated[
    Annotated[float, Meta(ge=0, le=VISIBILITY_S_MAX)] | DurationText,
    Meta(description="Seconds, or text such as '5m'.", examples=[300]),
]
MessageIdText = Annotated[
    str, Meta(pattern=text_forms.MESSAGE_ID, examples=["0pg4v6qg9e2g00000400000000000000"])
]
Receipt = Annotated[str, Meta(min_length=1, max_length=100, examples=["AAAAAAAAAAAAAAAAAAAA.17"])]
TransactionText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=TEXT_LENGTH_MAX,
        examples=["tx_AAAQAAEAAABg6gAAEAAAAAAAAAAAk9b2H0a5q7c"],
    ),
]
Priority = Annotated[
    int, Meta(ge=0, le=9, description="0 to 9; 9 is delivered first. Default: 4.", examples=[5])
]
Key = Annotated[
    str,
    Meta(
        max_length=100_000,
        description="Messages with the same key stay in order.",
        examples=["customer-7"],
    ),
]
Consumer = Annotated[
    str,
    Meta(
        max_length=200,
        description="The consumer's name. Required for a group (ordering 'partition').",
    ),
]
DedupId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=DEDUP_ID_MAX,
        description="A message with the same id within the topic's `dedup_window` is not stored again.",
    ),
]
