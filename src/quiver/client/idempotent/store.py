"""The interface of a store for ``quiver.idempotent``: which messages were handled."""

from __future__ import annotations

from typing import Any, Protocol

BUSY_S = 30.0
"""How long a transaction waits for its turn."""
FORGET_MAX = 100
"""How many expired messages are forgotten with each addition, which bounds the size of a table."""


class HandledTransaction(Protocol):
    """A transaction that stores one message as handled, together with the handler's writes."""

    @property
    def connection(self) -> Any:
        """The connection for the handler's writes, which are stored if and only if the message is."""

    def commit(self) -> None:
        """Store the handler's writes and that the message was handled. Ends the transaction."""

    def roll_back(self) -> None:
        """Discard both. Ends the transaction."""


class HandledStore(Protocol):
    """The interface of a store for ``quiver.idempotent``. Several threads call its methods."""

    def has(self, scope: str, key: str) -> bool:
        """Whether the message was handled before."""

    def begin(
        self, scope: str, key: str, now_us: int, forget_before_us: int
    ) -> HandledTransaction | None:
        """Return a transaction that remembers the message, or ``None`` if it was handled before.

        Messages that were handled before ``forget_before_us`` may be forgotten.
        """

    def close(self) -> None:
        """Close files and connections."""
