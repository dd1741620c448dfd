"""Messages of one lease that a consumer starts, keeps or settles."""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from quiver.errors import InvalidRequest
from quiver.model.subscription import VISIBILITY_S_MAX


class Settlement(msgspec.Struct, frozen=True):
    token: bytes
    """The lease, signed."""
    offsets: BitMap64


def visibility_us_of(seconds: float) -> int:
    """A visibility or delay that a consumer asks for."""
    if not 0 <= seconds <= VISIBILITY_S_MAX:
        raise InvalidRequest(f"a visibility must be 0 s to 12 h, not {seconds:,} s")
    return round(seconds * 1_000_000)
