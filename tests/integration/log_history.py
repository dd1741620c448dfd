"""What a log must hold after a crash, gathered from the reports of ``log_writer``.

``check`` opens the log and reads all of it. It holds when everything acknowledged is there to the
byte, unless it was allowed to go; when what an earlier reader could see is still the same; and when
whatever else is there is whole, in order and there once.
"""

from __future__ import annotations

from collections.abc import Iterator

from quiver.log.disk.real_disk import RealDisk
from quiver.log.segmented_log import SegmentedLog
from quiver.model.batch import StoredBatch
from quiver.model.clock import SystemClock
from quiver.model.ids import Offset
from tests.integration.log_writer import SETTINGS, stored_sum
from tests.killable import Report


class LogHistory:
    def __init__(self) -> None:
        self.acknowledged = 0
        self.dropped = 0
        """How many entries were acknowledged or seen and have been dropped since, as allowed."""
        self.torn = 0
        """How many times recovery cut a torn write."""
        self._sums: dict[int, str] = {}
        self._may_go_below = 0
        self._start_offset = 0

    def add(self, reports: list[Report]) -> None:
        for report in reports:
            match report.line.split():
                case ["open", cut_bytes]:
                    self.torn += int(cut_bytes) > 0
                case ["failed", error]:
                    raise AssertionError(f"a log that had its disk failed with {error}")
                case ["drop", before]:
                    self._may_go_below = max(self._may_go_below, int(before))
                case ["ack", offset, checksum]:
                    self.acknowledged += 1
                    self._expect(int(offset), checksum)
                case _:
                    raise AssertionError(f"not a report: {report.line!r}")

    def check(self, folder: str) -> None:
        log = SegmentedLog(folder, RealDisk(), SystemClock(), SETTINGS)
        try:
            self.torn += log.recovery_cut_bytes > 0
            self._check_start(log.start_offset)
            found = dict(self._read_all(log))
        finally:
            log.close()
        lost = sorted(offset for offset in self._sums if offset not in found)
        assert not lost, f"{len(lost)} acknowledged batches are lost, the first at offset {lost[0]}"
        for offset, checksum in found.items():
            self._expect(offset, checksum)

    def _expect(self, offset: int, checksum: str) -> None:
        known = self._sums.setdefault(offset, checksum)
        assert known == checksum, f"the batch at offset {offset} is another one than before"

    def _check_start(self, start_offset: int) -> None:
        assert start_offset >= self._start_offset, "what was dropped is back"
        assert start_offset <= self._may_go_below, "more was dropped than allowed"
        gone = [offset for offset in self._sums if offset < start_offset]
        for offset in gone:
            del self._sums[offset]
        self.dropped += len(gone)
        self._start_offset = start_offset

    def _read_all(self, log: SegmentedLog) -> Iterator[tuple[int, str]]:
        """Offset and sum of every entry, which must follow one another and be whole batches.

        The first may begin before the log does.
        """
        numbers: dict[str, int] = {}
        offset = log.start_offset
        while offset < log.next_offset:
            for entry in log.read_disk(offset, 1 << 20):
                follows = entry.base_offset == offset or not numbers
                assert follows, f"a gap or an overlap at offset {offset}"
                writer, number = _check_whole(entry)
                previous = numbers.setdefault(writer, number - 1)
                assert number == previous + 1, f"{writer} has batch {number} after {previous}"
                numbers[writer] = number
                yield int(entry.base_offset), stored_sum(entry)
                offset = Offset(entry.next_offset)


def _check_whole(entry: StoredBatch) -> tuple[str, int]:
    """The writer and the number of the batch, once every row is seen to be of it, and in place."""
    batch = entry.record_batch()
    batch.validate(full=True)
    payloads = batch.column("payload").to_pylist()
    name = payloads[0].split(b" ", 1)[0].decode()
    for row, payload in enumerate(payloads):
        expected = f"{name} {row} {entry.count} ".encode()
        assert payload.startswith(expected), f"offset {entry.base_offset} holds part of a batch"
    assert len(payloads) == entry.count
    writer, _, number = name.rpartition("/")
    return writer, int(number)
