"""Changes of the metadata store run to their end, whatever becomes of their callers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quiver.aio import cancel_and_wait
from quiver.broker.definitions.changes import MetadataChanges
from quiver.errors import MetadataUnavailable
from tests.aio import async_test


@async_test
async def test_a_change_whose_caller_has_left_may_fail_without_a_word() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    changes, answer = MetadataChanges(lambda: 0, None), asyncio.Event()

    async def change() -> None:
        await answer.wait()
        raise MetadataUnavailable

    calling = asyncio.create_task(changes.run(change()))
    await asyncio.sleep(0)
    await cancel_and_wait(calling)
    answer.set()
    await changes.close()
    await asyncio.sleep(0)
    assert said == []


@async_test
async def test_a_caller_learns_that_its_change_failed() -> None:
    async def change() -> None:
        raise MetadataUnavailable

    with pytest.raises(MetadataUnavailable):
        await MetadataChanges(lambda: 0, None).run(change())
