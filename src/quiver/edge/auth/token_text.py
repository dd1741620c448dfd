"""Tokens as text: ``qv_<id>_<secret>``. The id finds the record; only a hash of the secret is stored.

The secret has 256 random bits, so one round of SHA-256 is as good as a slow hash, and costs 1 µs.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import NamedTuple

SECRET_BYTES = 32
ID_BYTES = 8
_TOKEN = re.compile(r"qv_([0-9a-f]{16})_([0-9a-f]{64})")
_NO_HASH = bytes(32)


class TokenParts(NamedTuple):
    id: str
    secret: bytes


def token_text(token_id: str, secret: bytes) -> str:
    return f"qv_{token_id}_{secret.hex()}"


def token_parts(text: str) -> TokenParts | None:
    """``None`` if it is not written like a token at all."""
    match = _TOKEN.fullmatch(text.strip()) if len(text) <= 200 else None
    return None if match is None else TokenParts(match[1], bytes.fromhex(match[2]))


def hashed(secret: bytes) -> bytes:
    return sha256(secret).digest()


def is_secret_of(secret: bytes, stored: bytes | None) -> bool:
    """In the same time whether it is right or wrong, or there is nothing to compare it with."""
    same = hmac.compare_digest(hashed(secret), stored or _NO_HASH)
    return same and stored is not None
