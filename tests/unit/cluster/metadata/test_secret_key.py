"""The key of a node or cluster: secrets are of use only to who has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver.cluster.metadata.secret_key import MARK, SecretKey, read_key
from quiver.errors import InvalidSetting
from quiver.testing.clock import ManualClock
from quiver.testing.memory_store import MemoryStore
from tests.aio import async_test

KEY, OTHER = SecretKey(b"k" * 32), SecretKey(b"o" * 32)


def test_a_secret_needs_the_key_and_the_stored_value() -> None:
    secret = KEY.secret_of(b"stored")
    assert secret == KEY.secret_of(b"stored")
    assert secret not in (b"stored", OTHER.secret_of(b"stored"), KEY.secret_of(b"other"))
    assert SecretKey().secret_of(b"stored") == b"stored"


@async_test
async def test_metadata_belongs_to_the_key_that_was_given_first() -> None:
    store = MemoryStore(ManualClock())
    await SecretKey().require_own(store)
    assert await store.get(MARK) is None
    for _ in range(2):
        await KEY.require_own(store)
    with pytest.raises(InvalidSetting, match="is not the key that the metadata belongs to"):
        await OTHER.require_own(store)
    with pytest.raises(InvalidSetting, match=r"set security\.key_file"):
        await SecretKey().require_own(store)


def key_file(folder: Path, content: bytes, mode: int = 0o600) -> str:
    file = folder / "key"
    file.write_bytes(content)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_a_key_is_what_its_file_has_without_the_line_end(tmp_path: Path, mode: int) -> None:
    assert read_key(key_file(tmp_path, b"k" * 32 + b"\n", mode)) == KEY
    assert read_key("") == SecretKey()


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"k" * 31 + b"\n", 0o600, "has 31 bytes"),
        (b"", 0o600, "has 0 bytes"),
        (b"k" * 5000, 0o600, "a key has 32 to 4,096"),
        (b"k" * 32, 0o644, "others can use"),
        (b"k" * 32, 0o660, "others can use"),
    ],
)
def test_a_key_that_is_none_or_that_others_can_use_is_refused(
    tmp_path: Path, content: bytes, mode: int, reason: str
) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        read_key(key_file(tmp_path, content, mode))
