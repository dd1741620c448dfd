"""The pending messages of a subscription on this node. Reading them changes nothing."""

from __future__ import annotations

from pyroaring import BitMap64

from quiver import protocol
from quiver.broker.broker import Broker
from quiver.edge.messages.receiving import RECEIVE_BYTES_MAX
from quiver.errors import InvalidRequest
from quiver.model.batch import Bytes
from quiver.model.subscription import RECEIVE_MAX

PEEKED_STATES = ("ready", "delayed", "leased")


async def peek(broker: Broker, request: protocol.Peek) -> tuple[protocol.Peeked, list[Bytes]]:
    """Pending messages as they are now."""
    if not 1 <= request.messages_max <= RECEIVE_MAX:
        raise InvalidRequest(f"a peek is at 1 to {RECEIVE_MAX:,} messages")
    if not set(request.states) <= set(PEEKED_STATES) or not request.states:
        raise InvalidRequest(f"the states to peek at are {', '.join(PEEKED_STATES)}")
    subscription = await broker.directory.get(request.subscription)
    peeked_batches = await subscription.peek(
        request.messages_max,
        bytes_max=min(request.bytes_max, RECEIVE_BYTES_MAX),
        states=request.states,
    )
    infos = [
        protocol.PeekedBatchInfo(
            topic=peeked.topic,
            topic_number=peeked.topic_number,
            partition=peeked.partition,
            offsets=peeked.offsets.serialize(),
            states={state: part.serialize() for state, part in peeked.states.items() if part},
            deliveries={count: part.serialize() for count, part in peeked.deliveries.items()},
            size=sum(entry.size() for entry in peeked.entries),
        )
        for peeked in peeked_batches
    ]
    entries = [entry for peeked in peeked_batches for entry in peeked.entries]
    return protocol.Peeked(batches=infos), [
        buffer for entry in entries for buffer in entry.buffers()
    ]


async def read_state(
    broker: Broker, request: protocol.ReadState
) -> tuple[protocol.StateRead, list[Bytes]]:
    """Every pending message of a subscription, after the delivery state has caught up with the log."""
    subscription = await broker.directory.get(request.subscription)
    partitions: list[protocol.PartitionDeliveries] = []
    buffers: list[Bytes] = []
    for delivery in subscription.deliveries.values():
        view = delivery.view
        await delivery.state.catch_up_to(delivery.machine, delivery.state.data.next_offset)
        states = {state: view.in_state(state) for state in PEEKED_STATES}
        states["dead"] = view.dead_letter_pending.copy()
        pending = BitMap64.union(BitMap64(), *states.values())
        of_states = {state: part.serialize() for state, part in states.items() if part}
        counts = {count: part.serialize() for count, part in view.deliveries_of(pending).items()}
        partitions.append(
            protocol.PartitionDeliveries(
                topic=delivery.topic,
                topic_number=delivery.topic_number,
                partition=delivery.partition,
                next_offset=view.observed_to,
                states={state: len(data) for state, data in of_states.items()},
                deliveries={count: len(data) for count, data in counts.items()},
            )
        )
        buffers += [*of_states.values(), *counts.values()]
    return protocol.StateRead(partitions=partitions), buffers
