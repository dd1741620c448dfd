"""What a snapshot of a state log has: every subscription's state, as bytes."""

from __future__ import annotations

import msgspec

from quiver.broker.delivery.machine.snapshot import DeliverySnapshot, encode_snapshot
from quiver.model.ids import Offset


class SavedState(msgspec.Struct, frozen=True):
    """Every subscription's state when the records below ``offset`` had been applied."""

    offset: Offset
    machines: dict[int, bytes]
    sought: dict[int, Offset] | None = None
    """By subscription: no seek is in the records from here on; ``None`` if a snapshot does not say."""


def encode_saved(
    offset: Offset, machines: dict[int, DeliverySnapshot], sought: dict[int, Offset]
) -> bytes:
    saved = {number: encode_snapshot(machine) for number, machine in machines.items()}
    return _encode(SavedState(offset, saved, sought))


def decode_saved(data: bytes) -> SavedState | None:
    """``None`` if there is no intact one."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return None


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[SavedState] = msgspec.msgpack.Decoder(SavedState)
