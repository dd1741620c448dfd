"""Opens the store that a path or URL names."""

from __future__ import annotations

import os
from collections.abc import Callable

from quiver.client.idempotent.postgres_store import PostgresStore
from quiver.client.idempotent.redis_store import RedisStore
from quiver.client.idempotent.sqlite_store import SqliteStore
from quiver.client.idempotent.store import HandledStore
from quiver.errors import InvalidSetting

_STORES: dict[str, Callable[[str], HandledStore]] = {
    "postgres": PostgresStore,
    "postgresql": PostgresStore,
    "redis": RedisStore,
    "rediss": RedisStore,
}


def open_store(where: str | os.PathLike[str]) -> HandledStore:
    """The store at a URL of Postgres or Redis, or in an SQLite file."""
    text = os.fspath(where)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return SqliteStore(text)
    if scheme not in _STORES:
        raise InvalidSetting(
            f"handled messages cannot be stored at {scheme[:20]}://: give a path, or a URL that "
            f"begins with {', '.join(f'{one}://' for one in _STORES)}",
            setting="store",
        )
    return _STORES[scheme](text)
