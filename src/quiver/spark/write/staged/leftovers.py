"""What an earlier version has left of a sink: its last decision is carried out, and its topics go."""

from __future__ import annotations

from quiver.client import Client
from quiver.errors import TopicNotFound
from quiver.spark.write.staged.cleanup import remove_staging, remove_topic, staging_topic
from quiver.spark.write.staged.decisions import Decision, last_decision
from quiver.spark.write.staged.publish import publish_staged


def decided_before(client: Client, sink: str, batch: int) -> bool:
    """Whether an earlier version has decided a batch: then it is not written again."""
    last = last_decision(client, sink)
    return last is not None and last.batch >= batch


def finish(client: Client, sink: str, batch: int) -> bool:
    """Carry out what was decided last, and remove what was staged up to a batch; whether there was any."""
    last = last_decision(client, sink)
    if last is None:
        return False
    _carry_out(client, sink, last)
    remove_staging(client, sink, batch + 1)
    return True


def _carry_out(client: Client, sink: str, decision: Decision) -> None:
    """Publish what was decided, unless that was done: then its staging topic is gone."""
    staging = staging_topic(sink, decision.batch)
    try:
        number = client.describe_topic(staging).number
    except TopicNotFound:
        return
    if number == decision.staging_number:
        client.run(lambda inner: publish_staged(inner, staging, decision))
    remove_topic(client, staging)
