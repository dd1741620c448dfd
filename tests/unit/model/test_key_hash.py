"""Which partition a key belongs to: a contract that clients in other languages keep too."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.model.key_hash import HASHES, KeyRouter, even_ranges, key_hash

GOLDEN = [
    (b"", 0x00000000, 0),
    (b"\x00", 0x296EE401, 1),
    (b"a", 0x80102430, 6),
    (b"customer-7", 0x53A3A829, 3),
    (b"123456789", 0x66F03793, 4),
    (b"\xff\xff\xff\xff", 0x61C8864F, 4),
    ("Grüße".encode(), 0x9D35867D, 7),
    (bytes(range(256)), 0xBCAD3EDB, 8),
]
"""Key, hash, and partition of 12."""


@pytest.mark.parametrize(("key", "expected", "of_twelve"), GOLDEN)
def test_the_hash_of_a_key_never_changes(key: bytes, expected: int, of_twelve: int) -> None:
    assert key_hash(key) == expected
    assert KeyRouter.even(12).partition(key) == of_twelve


def _crc32c_bit_by_bit(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@settings(max_examples=40)
@given(st.binary(max_size=64))
def test_the_hash_is_the_documented_formula(key: bytes) -> None:
    assert key_hash(key) == _crc32c_bit_by_bit(key) * 0x9E3779B1 % (1 << 32)


@settings(max_examples=40)
@given(st.integers(1, 4096))
def test_ranges_begin_at_zero_and_differ_by_at_most_one(partitions: int) -> None:
    starts = even_ranges(partitions)
    sizes = [end - start for start, end in zip(starts, [*starts[1:], HASHES], strict=True)]
    assert starts[0] == 0
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=40)
@given(st.binary(max_size=32), st.integers(1, 4096))
def test_a_key_goes_to_the_partition_whose_range_holds_its_hash(
    key: bytes, partitions: int
) -> None:
    starts = [*even_ranges(partitions), HASHES]
    place = KeyRouter.even(partitions).partition(key)
    assert starts[place] <= key_hash(key) < starts[place + 1]


def test_keys_that_look_alike_are_spread_evenly() -> None:
    router = KeyRouter.even(16)
    counts = Counter(router.partition(f"customer-{number}".encode()) for number in range(16_000))
    assert len(counts) == 16
    assert max(counts.values()) < 1.2 * min(counts.values())
