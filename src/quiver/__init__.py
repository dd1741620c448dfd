"""Quiver: queues, topics and streams on one Arrow log. This is the public surface, and all of it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from quiver.version import __version__

if TYPE_CHECKING:
    from quiver import errors
    from quiver.client import (
        AsyncClient,
        AsyncProducer,
        AsyncReader,
        Client,
        Delivery,
        OutgoingMessage,
        Producer,
        Published,
        Reader,
        Tls,
    )
    from quiver.client.idempotent.idempotent import idempotent
    from quiver.embedded import open, open_async
    from quiver.model.message import Message
    from quiver.model.topic import Acks, Compression, Durability, Retention, TopicSettings
    from quiver.protocol import TopicInfo

__all__ = [
    "Acks",
    "AsyncClient",
    "AsyncProducer",
    "AsyncReader",
    "Client",
    "Compression",
    "Delivery",
    "Durability",
    "Message",
    "OutgoingMessage",
    "Producer",
    "Published",
    "Reader",
    "Retention",
    "Tls",
    "TopicInfo",
    "TopicSettings",
    "__version__",
    "errors",
    "idempotent",
    "open",
    "open_async",
]

_HOMES = {
    "quiver.client": (
        "AsyncClient",
        "AsyncProducer",
        "AsyncReader",
        "Client",
        "Delivery",
        "OutgoingMessage",
        "Producer",
        "Published",
        "Reader",
        "Tls",
    ),
    "quiver.client.idempotent.idempotent": ("idempotent",),
    "quiver.embedded": ("open", "open_async"),
    "quiver.model.message": ("Message",),
    "quiver.model.topic": ("Acks", "Compression", "Durability", "Retention", "TopicSettings"),
    "quiver.protocol": ("TopicInfo",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    # Loaded when first used, so that the command line and the server need not load the client.
    if name == "errors":
        return import_module("quiver.errors")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'quiver' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value
