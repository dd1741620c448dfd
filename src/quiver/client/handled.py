"""The stores behind ``quiver.idempotent``, under the names that programs import them by."""

from quiver.client.idempotent.postgres_store import PostgresStore
from quiver.client.idempotent.redis_store import RedisStore
from quiver.client.idempotent.sqlite_store import SqliteStore
from quiver.client.idempotent.store import HandledStore, HandledTransaction

__all__ = ["HandledStore", "HandledTransaction", "PostgresStore", "RedisStore", "SqliteStore"]
