"""Compression ratio of sample messages, in batches built as a producer builds them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quiver.errors import InvalidSetting
from quiver.model.builder import BatchBuilder
from quiver.model.topic import Compression

SAMPLE_BYTES_MAX = 64 << 20
"""No more of a file is looked at."""


class StoredSample(msgspec.Struct, frozen=True, kw_only=True):
    """What the sample takes when stored, with everything that goes with it."""

    messages: int
    payload_bytes: int
    stored_bytes: dict[str, int]
    """By compression."""

    @property
    def mean_bytes(self) -> float:
        return self.payload_bytes / self.messages

    def packed(self, compression: Compression) -> float:
        """Stored bytes for each byte of payload."""
        return self.stored_bytes[compression] / self.payload_bytes


def measure_sample(path: str, batch: int) -> StoredSample:
    """Each line of the file is a message; blank ones are not."""
    messages = payload = 0
    stored = dict.fromkeys(Compression, 0)
    for lines in _batches(path, batch):
        builder = BatchBuilder()
        builder.payloads.extend(lines)
        messages += len(lines)
        payload += sum(map(len, lines))
        for compression in stored:
            stored[compression] += builder.build(compression).size()
    if not payload:
        raise InvalidSetting(f"{path} is empty: a sample has one message on each line")
    return StoredSample(
        messages=messages,
        payload_bytes=payload,
        stored_bytes={str(name): size for name, size in stored.items()},
    )


def _batches(path: str, batch: int) -> Iterator[list[bytes]]:
    taken, lines = 0, []
    with open(path, "rb") as file:
        while taken < SAMPLE_BYTES_MAX and (line := file.readline(SAMPLE_BYTES_MAX)):
            taken += len(line)
            if stripped := line.strip():
                lines.append(stripped)
            if len(lines) == batch:
                yield lines
                lines = []
    if lines:
        yield lines
