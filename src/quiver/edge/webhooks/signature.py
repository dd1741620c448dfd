"""Signs pushes, so that an endpoint can tell its node from a stranger, and a push from a replay."""

from __future__ import annotations

import hashlib
import hmac

HEADER = "Quiver-Signature"
TOLERANCE_S = 300
"""How old a signature may be."""


def sign(secret: bytes, timestamp_s: int, body: bytes) -> str:
    """The header's value: the time, and HMAC-SHA256 over ``time.body``."""
    digest = hmac.new(secret, b"%d." % timestamp_s + body, hashlib.sha256).hexdigest()
    return f"t={timestamp_s},v1={digest}"


def is_genuine(secret: bytes, header: str, body: bytes, now_s: float) -> bool:
    """What an endpoint checks."""
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    try:
        timestamp_s = int(parts.get("t", ""))
    except ValueError:
        return False
    expected = sign(secret, timestamp_s, body)
    return hmac.compare_digest(expected, header) and abs(now_s - timestamp_s) <= TOLERANCE_S
