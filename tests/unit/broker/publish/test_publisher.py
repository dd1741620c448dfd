"""What a publish is told when its partition is not led here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quiver.broker.publish.publisher import Publisher
from quiver.errors import DiskFull, NotLeader
from tests.aio import async_test


def disk_has_room() -> None:
    pass


def disk_is_full() -> None:
    raise DiskFull("the disk is full")


def publisher(require_disk: Callable[[], None], *, is_sole_holder: bool) -> Publisher:
    """Of a node that does not lead the partition."""

    async def not_led(*_: object) -> None:
        raise NotLeader("this node is not the leader of it")

    placement = SimpleNamespace(is_sole_holder=lambda *_: is_sole_holder)
    parts = dict.fromkeys(("splitter", "producer_ids", "router", "changes"), cast("Any", None))
    return Publisher(
        topics=cast("Any", SimpleNamespace(get=lambda _: object())),
        partitions=cast("Any", SimpleNamespace(get=not_led, placement=placement)),
        space=cast("Any", SimpleNamespace(require_disk=require_disk)),
        run_checks=cast("Any", None),
        **parts,
    )


@async_test
async def test_a_full_disk_is_named_where_no_other_node_may_lead() -> None:
    with pytest.raises(DiskFull):
        await publisher(disk_is_full, is_sole_holder=True).partition("orders", 0)


@async_test
async def test_the_client_looks_elsewhere_where_another_node_may_lead() -> None:
    with pytest.raises(NotLeader):
        await publisher(disk_is_full, is_sole_holder=False).partition("orders", 0)


@async_test
async def test_a_disk_with_room_is_no_reason() -> None:
    with pytest.raises(NotLeader):
        await publisher(disk_has_room, is_sole_holder=True).partition("orders", 0)
