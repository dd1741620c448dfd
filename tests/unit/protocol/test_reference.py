"""The reference pages: they name every call, field, error and byte that the code has."""

from __future__ import annotations

import re
import typing

import msgspec
import pytest

from quiver import protocol
from quiver.errors import QuiverError, error_classes
from quiver.model.envelope import ProducerStamp, seal_batch, store_batch
from quiver.model.guard import _LENGTHS
from quiver.model.ids import LeaderEpoch, Microseconds, Offset, ProducerEpoch, ProducerId, Sequence
from quiver.model.schema import COLUMN_BIT, COLUMNS
from quiver.model.subscription import SubscriptionSettings
from quiver.model.topic import TopicSettings
from quiver.protocol.frames import PREFACE, frame
from tests.integration.native_peer import batch_of
from tests.paths import REPOSITORY
from tests.unit.model.test_key_hash import GOLDEN

_PAGES = REPOSITORY / "docs" / "reference"
PROTOCOL = (_PAGES / "protocol.md").read_text()
ERRORS = (_PAGES / "errors.md").read_text()
_BYTES = "".join(re.findall(r"[0-9a-f]{2}", " ".join(re.findall(r"```(.*?)```", PROTOCOL, re.S))))


def _structs() -> list[type[msgspec.Struct]]:
    """Every request and reply, and every struct inside them."""
    found: list[type[msgspec.Struct]] = []
    waiting = [*typing.get_args(protocol.AnyRequest), *typing.get_args(protocol.AnyReply)]
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in found:
            found.append(hint)
            waiting += typing.get_type_hints(hint).values()
    return found


@pytest.mark.parametrize(
    "kind", [*typing.get_args(protocol.AnyRequest), *typing.get_args(protocol.AnyReply)]
)
def test_the_protocol_page_names_every_call_and_reply(kind: type[msgspec.Struct]) -> None:
    assert f"`{kind.__struct_config__.tag}`" in PROTOCOL


@pytest.mark.parametrize("kind", _structs(), ids=lambda kind: kind.__name__)
def test_the_protocol_page_names_every_field(kind: type[msgspec.Struct]) -> None:
    missing = [name for name in kind.__struct_encode_fields__ if f"`{name}`" not in PROTOCOL]
    assert missing == []


@pytest.mark.parametrize("kind", typing.get_args(protocol.AnyRequest))
def test_the_section_of_a_call_names_its_own_fields(kind: type[msgspec.Struct]) -> None:
    name = kind.__struct_config__.tag
    (section,) = [
        part for part in re.split(r"\n##+ ", PROTOCOL) if f"`{name}`" in part.split("\n")[0]
    ]
    own = [field for field in kind.__struct_fields__ if field != "id"]
    assert [field for field in own if f"`{field}`" not in section] == []


@pytest.mark.parametrize("kind", [TopicSettings, SubscriptionSettings])
def test_the_protocol_page_has_every_setting(kind: type[msgspec.Struct]) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PROTOCOL, re.M)
    assert [name for name in kind.__struct_encode_fields__ if name not in rows] == []


@pytest.mark.parametrize("field", COLUMNS, ids=lambda field: field.name)
def test_the_protocol_page_has_every_column_with_its_bit(field: typing.Any) -> None:
    bit = COLUMN_BIT[field.name]
    row = f"| {bit.bit_length() - 1} | `0x{bit:04x}` | `{field.name}` | {str(field.type)[:3]}"
    assert row in PROTOCOL
    if field.name in _LENGTHS:
        (line,) = [line for line in PROTOCOL.splitlines() if line.startswith(row)]
        assert f"{_LENGTHS[field.name]:,} bytes" in line


@pytest.mark.parametrize(("key", "expected", "of_twelve"), GOLDEN)
def test_the_protocol_page_has_the_hash_of_every_golden_key(
    key: bytes, expected: int, of_twelve: int
) -> None:
    assert f"| `{expected:#010x}` | {of_twelve} |" in PROTOCOL


def test_the_bytes_in_the_protocol_page_are_those_that_are_sent() -> None:
    hello = frame(protocol.encode(protocol.Hello(id=1, versions=[1], client="test/1")))
    stamp = ProducerStamp(ProducerId(7), ProducerEpoch(2), Sequence(40))
    batch = batch_of(b"hello", stamp=stamp)
    again = seal_batch(batch.body, 1, batch.columns, stamp)
    entry = store_batch(
        again,
        base_offset=Offset(5),
        epoch=LeaderEpoch(0),
        append_time=Microseconds(1_700_000_000_000_000),
        durable_offset=Offset(5),
    )
    for data in (PREFACE + b"".join(hello), batch.head, bytes(entry.head[:48])):
        assert data.hex() in _BYTES


@pytest.mark.parametrize("kind", error_classes().values(), ids=lambda kind: kind.code)
def test_the_error_page_lists_every_code_with_whether_it_is_retryable(
    kind: type[QuiverError],
) -> None:
    row = f"| `{kind.code}` | `{kind.__name__}` | {'yes' if kind.retryable else 'no'} | "
    (line,) = [line for line in ERRORS.splitlines() if line.startswith(row)]
    assert len(line) > len(row) + 20, "it says what it means"


def test_the_error_page_lists_nothing_else() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", ERRORS, re.M)
    assert sorted(listed) == sorted(error_classes())
