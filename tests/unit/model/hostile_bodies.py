"""Arrow bodies that nobody's writer made, to be offered to the guard.

``mutants`` changes valid bodies at random places and seals them anew, so that the checksum is right
and only Arrow's own bytes are hostile. Run as a program it offers many of them to the guard and reads
every value of those that pass: what would crash a broker or a reader then ends a child process.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Iterator
from random import Random

import pyarrow as pa

from quiver.errors import InvalidBatch, MessageTooLarge
from quiver.model.batch import UnstoredBatch
from quiver.model.builder import encode_record_batch
from quiver.model.envelope import BATCH_COUNT_MAX, seal_batch
from quiver.model.guard import check_batch
from quiver.model.schema import ALL_COLUMNS, COLUMNS, PAYLOAD
from quiver.model.topic import Compression

MESSAGE_BYTES_MAX = 100
_EXTREMES = (
    0,
    1,
    -1,
    2,
    7,
    8,
    127,
    -128,
    255,
    1 << 15,
    1 << 20,
    1 << 26,
    (1 << 31) - 1,
    -(1 << 31),
)
_WIDE_EXTREMES = (*_EXTREMES, 1 << 32, 1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63))


def full_batch(rows: int) -> pa.RecordBatch:
    """A value, or none, in every column."""
    values = {
        "key": [b"k" * (row % 5) if row % 3 else None for row in range(rows)],
        "payload": [b"payload-%d" % row * (1 + row % 4) for row in range(rows)],
        "headers": [
            {f"name-{row}": "value", "other": "ünïcode"} if row % 2 else None for row in range(rows)
        ],
        "event_time": [1_700_000_000_000_000 + row if row % 4 else None for row in range(rows)],
        "priority": [row % 10 if row % 5 else None for row in range(rows)],
        "deliver_at": [1_700_000_000_000_000 if row % 7 == 1 else None for row in range(rows)],
        "expires_at": [1_800_000_000_000_000 if row % 7 != 1 else None for row in range(rows)],
        "dedup_id": [f"dedup-{row}" if row % 2 else None for row in range(rows)],
        "sequence": [row if row % 3 else None for row in range(rows)],
        "origin_topic": [f"orders-{row}" if row % 2 else None for row in range(rows)],
        "origin_partition": [row if row % 4 else None for row in range(rows)],
        "origin_offset": [row << 33 if row % 3 else None for row in range(rows)],
        "origin_subscription": ["billing" if row % 2 else None for row in range(rows)],
        "origin_time": [1_700_000_000_000_000 + row if row % 3 else None for row in range(rows)],
        "deliveries": [5 if row % 2 else None for row in range(rows)],
        "last_error": ["ünïcode failed" if row % 2 else None for row in range(rows)],
        "first_delivery": [1_700_000_100_000_000 + row if row % 2 else None for row in range(rows)],
        "last_delivery": [1_700_000_200_000_000 + row if row % 3 else None for row in range(rows)],
        "origin_identity": [f"orders/invoice-{row}" if row % 2 else None for row in range(rows)],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values[field.name], field.type) for field in COLUMNS], schema=pa.schema(COLUMNS)
    )


def valid_batches() -> list[UnstoredBatch]:
    """All columns, the payload alone, one row and many, each with every compression."""
    shapes = [full_batch(2), full_batch(40), full_batch(1000), full_batch(3).select(["payload"])]
    return [
        encode_record_batch(shape, compression) for shape in shapes for compression in Compression
    ]


def mutants(seed: int, count: int) -> Iterator[UnstoredBatch]:
    random = Random(seed)
    bases = valid_batches()
    for _ in range(count):
        base = random.choice(bases)
        body = bytearray(base.body)
        for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
            _mutate(body, random)
        rows, columns = base.count, base.columns
        if random.random() < 0.05:
            rows = random.randint(1, BATCH_COUNT_MAX)
        if random.random() < 0.05:
            columns = random.randint(0, ALL_COLUMNS) | PAYLOAD
        yield seal_batch(bytes(body), rows, columns)


def _mutate(body: bytearray, random: Random) -> None:
    if not body:
        return
    # Half of the changes go to the flatbuffer, where lengths and positions are.
    end = len(body) if random.random() < 0.5 else min(len(body), 400)
    place = random.randrange(end)
    kind = random.randrange(6)
    if kind == 0:
        body[place] ^= 1 << random.randrange(8)
    elif kind == 1:
        body[place] = random.randrange(256)
    elif kind == 2 and place // 4 * 4 + 4 <= len(body):
        struct.pack_into("<i", body, place // 4 * 4, random.choice(_EXTREMES))
    elif kind == 3 and place // 8 * 8 + 8 <= len(body):
        struct.pack_into("<q", body, place // 8 * 8, random.choice(_WIDE_EXTREMES))
    elif kind == 4:
        source = random.randrange(len(body))
        length = random.choice((1, 2, 4, 8, 16))
        body[place : place + length] = body[source : source + length]
    elif kind == 5 and random.random() < 0.3:
        del body[place:]
        body += random.randbytes(random.choice((0, 1, 8, 64)))


def outcome(batch: UnstoredBatch) -> str:
    """What the guard says of a batch; one that passes is read to the last value."""
    try:
        facts = check_batch(batch, MESSAGE_BYTES_MAX)
    except InvalidBatch:
        return "invalid"
    except MessageTooLarge:
        return "too large"
    rows = facts.rows.to_pylist()
    assert len(rows) == batch.count
    for row in rows:
        size = len(row["payload"]) + len(row.get("key") or b"")
        size += sum(len(n.encode()) + len((v or "").encode()) for n, v in row.get("headers") or ())
        assert size <= MESSAGE_BYTES_MAX, f"a message of {size} bytes passed"
    again = pa.ipc.read_record_batch(pa.py_buffer(batch.body), facts.rows.schema)
    assert again.equals(facts.rows)
    return "passed"


def main(seed: int, count: int) -> None:
    results: Counter[str] = Counter()
    for number, batch in enumerate(mutants(seed, count)):
        try:
            results[outcome(batch)] += 1
        except Exception as error:
            raise AssertionError(f"mutant {number} of seed {seed}") from error
    print(dict(results))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
