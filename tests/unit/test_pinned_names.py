"""Names that leave the process: a rename in the code must not change what peers and clients see.

Nodes of two versions talk to each other during a rolling upgrade, generated HTTP clients use operation
ids and schema names, and state logs are read by later versions. A new name is added to the list; one
that is there is never changed or removed.
"""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest

from quiver.broker.delivery.machine.records import AnyRecord
from quiver.broker.transactions.records import AnyTransactionRecord
from quiver.edge.http.app import OPERATIONS
from quiver.edge.http.openapi import openapi_document
from quiver.edge.http.routes.description import description_of
from quiver.edge.peers.messages import PeerReply, Question
from quiver.protocol import AnyReply, AnyRequest
from tests.paths import REPOSITORY

PINNED: dict[str, Any] = json.loads((REPOSITORY / "tests/golden/names/names.json").read_text())
EVERY = (*OPERATIONS, *description_of(OPERATIONS))


def test_operation_ids_are_the_pinned_ones() -> None:
    served = {f"{operation.method} {operation.path}": operation.id for operation in EVERY}
    assert served == PINNED["operations"]


def test_openapi_schema_names_are_the_pinned_ones() -> None:
    assert sorted(openapi_document(EVERY)["components"]["schemas"]) == PINNED["schemas"]


@pytest.mark.parametrize(
    ("union", "name"),
    [
        (AnyRequest, "requests"),
        (AnyReply, "replies"),
        (Question, "peer_questions"),
        (PeerReply, "peer_answers"),
        (AnyRecord, "state_records"),
        (AnyTransactionRecord, "transaction_records"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_message_tags_are_the_pinned_ones(union: Any, name: str) -> None:
    assert sorted(kind.__struct_config__.tag for kind in typing.get_args(union)) == PINNED[name]
