"""The Python client: what a program uses to talk to Quiver, over a socket or inside one process."""

from quiver.client.access import Tls
from quiver.client.async_client import AsyncClient
from quiver.client.blocking import Client
from quiver.client.blocking_producer import Producer
from quiver.client.blocking_reader import Reader
from quiver.client.channel import Channel, Dialer
from quiver.client.delivery import Delivery, Published
from quiver.client.outgoing import MessageOptions, OutgoingMessage
from quiver.client.producer import AsyncProducer
from quiver.client.reader import AsyncReader
from quiver.client.table import TableDelivery

__all__ = [
    "AsyncClient",
    "AsyncProducer",
    "AsyncReader",
    "Channel",
    "Client",
    "Delivery",
    "Dialer",
    "MessageOptions",
    "OutgoingMessage",
    "Producer",
    "Published",
    "Reader",
    "TableDelivery",
    "Tls",
]
