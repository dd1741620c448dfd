"""The page of the native protocol names everything that is in it."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec
import pytest

from quiver.model import wire
from quiver.model.key_hash import key_hash
from quiver.model.schema import COLUMNS

_PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "protocol.md").read_text()
_SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", _PAGE, re.MULTILINE | re.DOTALL))
_CALLS = [*typing.get_args(wire.AnyRequest), *typing.get_args(wire.AnyReply)]


@pytest.mark.parametrize("kind", _CALLS, ids=lambda kind: kind.__name__)
def test_every_call_and_field_is_on_the_page(kind: type[msgspec.Struct]) -> None:
    tag = kind.__struct_config__.tag
    for field in msgspec.structs.fields(kind):
        assert field.name == "id" or f"`{field.name}`" in _SECTIONS[str(tag)]


def test_every_column_has_its_bit_and_type_on_the_page() -> None:
    for bit, column in enumerate(COLUMNS):
        assert f"| {bit} | `{column.name}` | `{column.type}` |" in _PAGE


def test_the_hashes_on_the_page_are_right() -> None:
    vectors = re.findall(r"^\| `([\w-]*)` \| `(0x[0-9a-f]{8})` \|$", _PAGE, re.MULTILINE)
    assert len(vectors) == 4
    for key, value in vectors:
        assert key_hash(key.encode()) == int(value, 16)
