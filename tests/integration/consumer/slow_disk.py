"""A disk that can be held up: while it is, nothing that the node writes becomes durable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from quiver.log.disk.inline_policy import InlinePolicy
from quiver.log.disk.real_disk import RealAppendFile

_SECONDS_MAX = 60.0


class HeldDisk:
    """The disk of all nodes in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_free = threading.Event()
        self._is_free.set()
        # A lone small write on the event loop would hold up the whole node, not only its disk.
        monkeypatch.setattr(InlinePolicy, "allows", lambda *_: False)
        for name in ("append", "append_synced", "sync"):
            monkeypatch.setattr(RealAppendFile, name, self._waiting(name))

    def _waiting(self, name: str) -> Any:
        method = getattr(RealAppendFile, name)

        def wait(handle: RealAppendFile, *arguments: Any) -> Any:
            assert self._is_free.wait(_SECONDS_MAX)
            return method(handle, *arguments)

        return wait

    @contextmanager
    def held(self) -> Iterator[None]:
        self._is_free.clear()
        try:
            yield
        finally:
            self._is_free.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    return HeldDisk(monkeypatch)
