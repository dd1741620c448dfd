"""The key of a node or cluster: what the metadata store holds is a secret only together with it.

Each secret is made of the key and a random value in the store. So neither of them alone is of use, and a
stored value may be replaced as without a key. The store remembers which key it belongs to.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import stat

import msgspec

from quiver.cluster.metadata.store import Expect, MetadataStore, Put
from quiver.errors import InvalidSetting, MetadataConflict

MARK = "secrets/key"
"""Where the store keeps what only the holder of the key can make."""
KEY_BYTES_MIN, KEY_BYTES_MAX = 32, 4096
_MARKED = b"the key of this metadata"


class SecretKey(msgspec.Struct, frozen=True):
    """Without a key, stored values are the secrets themselves."""

    key: bytes = b""

    def secret_of(self, stored: bytes) -> bytes:
        return hmac.digest(self.key, stored, "sha256") if self.key else stored

    async def require_own(self, store: MetadataStore) -> None:
        """``InvalidSetting`` if the store belongs to another key, or to one and none is given."""
        known = await store.get(MARK)
        if self.key and known is None:
            with contextlib.suppress(MetadataConflict):  # another node was quicker
                await store.commit([Expect(MARK, 0)], [Put(MARK, self.secret_of(_MARKED))])
            known = await store.get(MARK)
        if known is None:
            return
        if not self.key:
            raise InvalidSetting(
                "the metadata belongs to a key: set security.key_file to the file with it"
            )
        if not hmac.compare_digest(known.value, self.secret_of(_MARKED)):
            raise InvalidSetting("security.key_file is not the key that the metadata belongs to")


def read_key(path: str) -> SecretKey:
    """The key in a file; without a path, none."""
    if not path:
        return SecretKey()
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(KEY_BYTES_MAX + 1).strip()
    except OSError as error:
        raise InvalidSetting(
            f"security.key_file: {path!r} cannot be read: {error.strerror}"
        ) from error
    if mode & (stat.S_IWGRP | stat.S_IRWXO):
        raise InvalidSetting(
            f"security.key_file: others can use {path!r}; run chmod 600 on it (or 640)"
        )
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise InvalidSetting(
            f"security.key_file: {path!r} has {len(key):,} bytes; a key has {KEY_BYTES_MIN} to "
            f"{KEY_BYTES_MAX:,}, as from: openssl rand -hex 32"
        )
    return SecretKey(key)
