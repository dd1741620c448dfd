"""How finished messages ended: a search reads no further than it has to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pyroaring import BitMap64

from quiver.broker.delivery.history import History
from quiver.broker.delivery.machine.records import (
    AnyRecord,
    Finished,
    Leased,
    Sought,
    StateEntry,
    encode_entries,
)
from quiver.log.log import Log
from quiver.model.ids import Microseconds, Offset
from tests.aio import async_test

OURS, OTHERS = BitMap64([5]).serialize(), BitMap64([6]).serialize()


class Records:
    """A state log of one record in each entry, read one by one; ``read_to`` is how far."""

    start_offset = Offset(0)

    def __init__(self, *records: AnyRecord) -> None:
        self._entries = [[StateEntry(1, [record])] for record in records]
        self.next_offset = Offset(len(records))
        self.read_to = 0
        self.history = History(cast(Log, self))
        for end, entries in enumerate(self._entries, 1):
            self.history.note(entries, Offset(end))

    async def offset_at(self, time: Microseconds) -> Offset:
        return Offset(time)

    async def read(self, offset: Offset, _bytes: int) -> list[Any]:
        self.read_to = offset + 1
        body = encode_entries(self._entries[offset])
        return [SimpleNamespace(next_offset=offset + 1, columns=0, body=body, append_time=offset)]


def leased(consumer: str) -> AnyRecord:
    return Leased(OURS, 1, consumer, Microseconds(0), Microseconds(10))


@async_test
async def test_a_search_ends_with_the_end_of_the_message() -> None:
    log = Records(leased("ann"), Finished(OURS, 1), *[Finished(OTHERS, 1)] * 50)
    found = await log.history.outcome(1, Offset(5), Microseconds(0))
    assert found is not None
    assert (found.state, found.consumer, log.read_to) == ("acknowledged", "ann", 2)


@async_test
async def test_a_message_that_a_seek_brought_back_ended_when_it_ended_last() -> None:
    log = Records(
        leased("ann"),
        Finished(OURS, 1),
        Sought(BitMap64().serialize(), Offset(0)),
        leased("bob"),
        Finished(OURS, 1),
        *[Finished(OTHERS, 1)] * 50,
    )
    found = await log.history.outcome(1, Offset(5), Microseconds(0))
    assert found is not None
    assert (found.consumer, log.read_to) == ("bob", 5)


@async_test
async def test_where_seeks_may_be_unknown_a_search_reads_on() -> None:
    log = Records(leased("ann"), Finished(OURS, 1), *[Finished(OTHERS, 1)] * 50)
    log.history.sought[1] = Offset(40)
    assert await log.history.outcome(1, Offset(5), Microseconds(0)) is not None
    assert log.read_to == 40


@async_test
async def test_a_search_of_a_message_that_did_not_end_reads_all() -> None:
    log = Records(leased("ann"), *[Finished(OTHERS, 1)] * 50)
    assert await log.history.outcome(1, Offset(5), Microseconds(0)) is None
    assert log.read_to == 51
