"""The Python client: what a program uses to talk to Quiver, over a socket or inside one process."""

from quiver.client.async_client import AsyncClient
from quiver.client.blocking.client import Client
from quiver.client.blocking.consumer import Consumer
from quiver.client.blocking.producer import Producer
from quiver.client.blocking.reader import Reader
from quiver.client.blocking.transaction import Transaction
from quiver.client.consumer.consumer import AsyncConsumer
from quiver.client.producer.delivery import Delivery, Published
from quiver.client.producer.outgoing import MessageOptions, OutgoingMessage
from quiver.client.producer.producer import AsyncProducer
from quiver.client.producer.table import TableDelivery
from quiver.client.reader.reader import AsyncReader
from quiver.client.transaction.transaction import AsyncTransaction
from quiver.client.transport.access import Tls
from quiver.client.transport.channel import Channel, Dialer

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncTransaction",
    "Channel",
    "Client",
    "Consumer",
    "Delivery",
    "Dialer",
    "MessageOptions",
    "OutgoingMessage",
    "Producer",
    "Published",
    "Reader",
    "TableDelivery",
    "Tls",
    "Transaction",
]
