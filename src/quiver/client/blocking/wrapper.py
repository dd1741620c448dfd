"""Async written once, wrapped once: coroutine methods as methods that wait.

``blocking`` takes a method of an async class and gives it to a ``Wrapper`` of that class, with the
same signature and the same words. There is no second implementation of anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from quiver.client.blocking.loop_thread import LoopThread

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


class Wrapper(Protocol[A_co]):
    """Something async, and the thread on whose loop it lives."""

    def _wrapped(self) -> A_co: ...

    def _loop_thread(self) -> LoopThread: ...

    def _run(self, work: Callable[[A_co], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with what is wrapped, and wait for its result."""
        inner = self._wrapped()
        return self._loop_thread().run(lambda: work(inner))


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Wrapper[A], P], T]:
    """A method that runs ``method`` of what is wrapped, and waits for its result."""

    @functools.wraps(method)
    def wait(wrapper: Wrapper[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wrapper._run(lambda inner: method(inner, *args, **kwargs))

    return wait
