"""Messages by lease: as a session counts, settles and returns them."""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap64

from quiver.protocol import Settlement

Leases = dict[bytes, BitMap64]


def settlements_of(leases: Leases) -> list[Settlement]:
    """Messages as the wire has them."""
    return [Settlement(lease, offsets.serialize()) for lease, offsets in leases.items()]


def leases_from(settlements: Iterable[Settlement]) -> Leases:
    """The reverse."""
    return {one.lease: BitMap64.deserialize(one.offsets) for one in settlements}


def union(parts: Iterable[Leases]) -> Leases:
    found: Leases = {}
    for leases in parts:
        for lease, offsets in leases.items():
            known = found.get(lease)
            found[lease] = offsets if known is None else known | offsets
    return found
