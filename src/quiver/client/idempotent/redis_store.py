"""Stores in Redis which messages were handled, for consumers on several machines.

A consumer claims a message before its work is stored. The claim ends after a while by itself, so a consumer
that ends without a word delays the message and does not lose it. The end of the work is one transaction
of Redis: the handler's commands and the note that the message was handled take effect together, and only
if the claim is still the consumer's own. What was handled expires after ``keep``. Redis does not undo: if it
refuses one command of a transaction, the others take effect all the same.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import Any

from quiver.client.idempotent.store import BUSY_S
from quiver.errors import InvalidRequest, InvalidSetting, Unavailable

CLAIM_S = 30.0
"""How long a consumer may take between ``begin`` and the end of its work."""
_LOOK_S = 0.05
_HANDLED = b"handled"
_DROP_CLAIM = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class RedisStore:
    """Keys ``quiver:handled:…`` at ``url``. Needs the extra ``redis``."""

    def __init__(self, url: str, *, claim_s: float = CLAIM_S) -> None:
        try:
            import redis  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise InvalidSetting(
                "handled messages in Redis need its driver: pip install 'quivermq[redis]'"
            ) from error
        self.driver = redis
        self._claim_s = claim_s
        self._is_closed = False
        try:
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=BUSY_S, socket_connect_timeout=BUSY_S
            )
            self._client.ping()
        except (redis.RedisError, ValueError) as error:
            raise InvalidSetting(
                f"Redis cannot store handled messages: {error}; check the URL", setting="store"
            ) from error

    def has(self, scope: str, key: str) -> bool:
        with self.refusals():
            self._require_open()
            return bool(self._client.get(_name(scope, key)) == _HANDLED)

    def begin(
        self, scope: str, key: str, now_us: int, forget_before_us: int
    ) -> RedisTransaction | None:
        name, claim = _name(scope, key), secrets.token_bytes(16)
        with self.refusals():
            self._require_open()
            if not self._claim(name, claim):
                return None
            keep_ms = max(1, (now_us - forget_before_us) // 1000)
            return RedisTransaction(self, self._client, name, claim, keep_ms)

    def close(self) -> None:
        self._is_closed = True
        self._client.close()

    def _require_open(self) -> None:
        """The driver would connect again."""
        if self._is_closed:
            raise InvalidRequest("the store of handled messages is closed")

    def _claim(self, name: str, claim: bytes) -> bool:
        """Claim the message, after waiting for another claim on it; false if it was handled."""
        deadline = time.monotonic() + self._claim_s + BUSY_S
        while not self._client.set(name, claim, nx=True, px=round(self._claim_s * 1000)):
            found = self._client.get(name)
            if found == claim:  # the driver sent it twice
                return True
            if found == _HANDLED:
                return False
            if time.monotonic() > deadline:
                raise Unavailable("other consumers work on this message; try again")
            time.sleep(_LOOK_S)
        return True

    @contextlib.contextmanager
    def refusals(self) -> Iterator[None]:
        """What Redis refuses, as an error after which the message may be tried again."""
        try:
            yield
        except self.driver.WatchError as error:
            raise Unavailable(
                f"the work took longer than the claim of {self._claim_s:g} s: nothing was stored"
            ) from error
        except self.driver.RedisError as error:
            raise Unavailable(f"the store of handled messages failed: {error}") from error


class RedisTransaction:
    """A claim, to be ended once with ``commit`` or ``roll_back``.

    ``connection`` is a pipeline: commands of the handler are queued until ``commit``.
    """

    def __init__(
        self, store: RedisStore, client: Any, name: str, claim: bytes, keep_ms: int
    ) -> None:
        self._store = store
        self._client = client
        self._name = name
        self._claim = claim
        self._keep_ms = keep_ms
        self.connection: Any = client.pipeline(transaction=True)
        self.connection.watch(name)
        if self.connection.get(name) != claim:
            self.connection.reset()
            raise Unavailable("the claim on this message ended; try again")
        self.connection.multi()

    def commit(self) -> None:
        if not self.connection.explicit_transaction:
            self.roll_back()
            raise InvalidRequest("a handler must not execute or reset the pipeline: Quiver does it")
        try:
            self.connection.set(self._name, _HANDLED, px=self._keep_ms)
            with self._store.refusals():
                self.connection.execute()
        except BaseException as error:
            self.roll_back()
            is_refused = isinstance(error.__cause__, self._store.driver.ResponseError)
            if is_refused and self._is_handled():
                raise InvalidRequest(
                    "Redis refused a command of the handler. The others took effect, and the "
                    f"message counts as handled: {error.__cause__}"
                ) from error
            raise

    def _is_handled(self) -> bool:
        with contextlib.suppress(Unavailable), self._store.refusals():
            return bool(self._client.get(self._name) == _HANDLED)
        return False

    def roll_back(self) -> None:
        with contextlib.suppress(Unavailable), self._store.refusals():  # the claim ends by itself
            self.connection.reset()
            self._client.eval(_DROP_CLAIM, 1, self._name, self._claim)


def _name(scope: str, key: str) -> str:
    """The length keeps a scope and a key apart."""
    return f"quiver:handled:{len(scope)}:{scope}:{key}"
