"""The store behind ``quiver.idempotent``, under the name that programs import it by."""

from quiver.client.idempotent.store import HandledStore, HandledTransaction, SqliteStore

__all__ = ["HandledStore", "HandledTransaction", "SqliteStore"]
