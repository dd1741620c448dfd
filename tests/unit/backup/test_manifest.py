"""The manifest: what was written comes back, and damage is found."""

from __future__ import annotations

import pytest

from quiver.backup.manifest import Manifest, decode_manifest, encode_manifest
from quiver.errors import CorruptBackup, UnsupportedFormat
from tests.unit.backup.backups import manifest_of, partition_of, topic_of


def example() -> Manifest:
    return manifest_of(topic_of("orders", partition_of((0, 10), (10, 15)), number=7))


def test_a_manifest_comes_back_as_it_was() -> None:
    manifest = example()
    assert decode_manifest(encode_manifest(manifest), "m") == manifest
    assert (manifest.messages, len(manifest.objects)) == (15, 2)


@pytest.mark.parametrize(
    ("change", "into"), [(b'"orders"', b'"others"'), (b"}", b""), (b'"next_offset":15', b'"x":15')]
)
def test_damage_in_a_manifest_is_found(change: bytes, into: bytes) -> None:
    data = encode_manifest(example())
    assert change in data
    with pytest.raises(CorruptBackup):
        decode_manifest(data.replace(change, into, 1), "m")


def test_a_manifest_of_a_later_version_is_refused() -> None:
    data = encode_manifest(example()).replace(b'"version":1', b'"version":2', 1)
    with pytest.raises(UnsupportedFormat, match="use a newer Quiver"):
        decode_manifest(data, "m")
