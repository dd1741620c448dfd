"""All metrics of a node, defined once: ``/metrics``, the reference and the dashboard use this.

Names and units follow the conventions of Prometheus: base units, and counters end in ``_total``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Definition(msgspec.Struct, frozen=True):
    name: str
    """As served; a counter's ends in ``_total``."""
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, help_text: str, *labels: str) -> Definition:
    return Definition(f"quiver_{name}_total", MetricKind.COUNTER, help_text, labels)


def _gauge(name: str, help_text: str, *labels: str) -> Definition:
    return Definition(f"quiver_{name}", MetricKind.GAUGE, help_text, labels)


def _histogram(name: str, help_text: str, *labels: str) -> Definition:
    return Definition(f"quiver_{name}", MetricKind.HISTOGRAM, help_text, labels)


# ------------------------------------------------------------------ the node

BUILD_INFO = _gauge(
    "build_info", "Always 1; the labels have the node and its version.", "node", "version"
)
CONNECTIONS = _gauge("connections", "Clients that are connected.")
CONNECTIONS_OPENED = _counter("connections_opened", "Connections accepted since the start.")
CONNECTIONS_CLOSED = _counter("connections_closed", "Connections closed, by reason.", "reason")
REQUESTS = _counter("requests", "Requests received, by call.", "call")
ERRORS = _counter("errors", "Requests that failed, by error code.", "code")
PUBLISHED_BATCHES = _counter(
    "published_batches", "Batches confirmed to producers, duplicates included."
)
PUBLISHED_BYTES = _counter("published_bytes", "Bytes of batches received from producers.")
UNREAD_LOST = _counter(
    "unread_lost_messages", "Messages that retention deleted before they were consumed."
)
FETCHED_BYTES = _counter("fetched_bytes", "Bytes sent to readers.")
FORWARDED_BYTES = _counter(
    "forwarded_bytes",
    "Bytes that a forwarder passed on over the native protocol, to_nodes or to_clients.",
    "direction",
)
FSYNC = _histogram("fsync_seconds", "Time to write and sync a group of batches.")
DISK_FREE = _gauge("disk_free_bytes", "Free space on the disk of the data folder.")
TOPICS = _gauge("topics", "Topics, queues included.")
SUBSCRIPTIONS = _gauge("subscriptions", "Subscriptions, those of queues included.")
PARTITIONS = _gauge("partitions", "Open partitions.")
PARTITIONS_FAILED = _gauge(
    "partitions_failed", "Partitions that accept no messages because their log failed."
)
TRANSACTIONS = _counter(
    "transactions", "Transactions that this node has decided: committed or aborted.", "outcome"
)
TRANSACTIONS_UNFINISHED = _gauge(
    "transactions_unfinished",
    "Transactions that this node has decided and that not all their partitions know of yet.",
)
ALERTS_FIRING = _gauge("alerts_firing", "Alerts that are firing, by severity.", "severity")

NODE = (
    BUILD_INFO,
    CONNECTIONS,
    CONNECTIONS_OPENED,
    CONNECTIONS_CLOSED,
    REQUESTS,
    ERRORS,
    PUBLISHED_BATCHES,
    PUBLISHED_BYTES,
    UNREAD_LOST,
    FETCHED_BYTES,
    FORWARDED_BYTES,
    FSYNC,
    DISK_FREE,
    TOPICS,
    SUBSCRIPTIONS,
    PARTITIONS,
    PARTITIONS_FAILED,
    TRANSACTIONS,
    TRANSACTIONS_UNFINISHED,
    ALERTS_FIRING,
)

# ------------------------------------------------------------------ topics

TOPIC_MESSAGES = _counter("topic_messages", "Messages stored.", "topic")
TOPIC_BYTES = _counter("topic_bytes", "Bytes stored.", "topic")
TOPIC_BATCHES = _counter("topic_batches", "Batches stored.", "topic")
TOPIC_SIZE = _gauge(
    "topic_size_bytes",
    "Size of what retention keeps; on disk a partition may take a segment more.",
    "topic",
)
PUBLISH = _histogram(
    "publish_seconds", "Time from the arrival of a publish to its confirmation.", "topic"
)

DEDUP_FORGOTTEN = _counter(
    "dedup_forgotten_ids",
    "Message ids that a dedup window forgot before their time, for lack of memory.",
    "topic",
)

OPEN_TRANSACTIONS = _gauge(
    "topic_open_transactions",
    "Open transactions, counted in each partition that they have written to.",
    "topic",
)
TRANSACTION_AGE = _gauge(
    "topic_open_transaction_age_seconds",
    "Age of the oldest open transaction, which readers wait for; 0 if there is none.",
    "topic",
)

TOPIC = (
    TOPIC_MESSAGES,
    TOPIC_BYTES,
    TOPIC_BATCHES,
    TOPIC_SIZE,
    DEDUP_FORGOTTEN,
    OPEN_TRANSACTIONS,
    TRANSACTION_AGE,
    PUBLISH,
)

# ------------------------------------------------------------------ subscriptions

MESSAGES = _gauge(
    "subscription_messages",
    "Messages by state: ready, delayed, leased or dead (in the dead-letter queue and not handled).",
    "subscription",
    "state",
)
LAG = _gauge("subscription_lag_messages", "Messages that are not acknowledged yet.", "subscription")
PARTITION_ROWS_MAX = 5_000
PARTITION_LAG = _gauge(
    "subscription_partition_lag_messages",
    "Messages of a partition that are not acknowledged yet; "
    f"of the first {PARTITION_ROWS_MAX:,} partitions of all subscriptions on a node.",
    "subscription",
    "topic",
    "partition",
)
COMMITTED_OFFSET = _gauge(
    "subscription_partition_committed_offset",
    "Committed offset of a partition: all messages before it are finished; "
    f"of the first {PARTITION_ROWS_MAX:,} partitions of all subscriptions on a node.",
    "subscription",
    "topic",
    "partition",
)
OLDEST_AGE = _gauge(
    "subscription_oldest_age_seconds",
    "Age of the oldest unacknowledged message; 0 if there is none.",
    "subscription",
)
DELIVERED = _counter("subscription_delivered_messages", "Messages delivered.", "subscription")
DELIVERED_BYTES = _counter("subscription_delivered_bytes", "Bytes delivered.", "subscription")
REDELIVERED = _counter(
    "subscription_redelivered_messages", "Messages delivered again.", "subscription"
)
ACKED = _counter("subscription_acked_messages", "Messages acknowledged.", "subscription")
NACKED = _counter(
    "subscription_nacked_messages",
    "Messages that failed at consumers (nack, reject).",
    "subscription",
)
DEAD_LETTERED = _counter(
    "subscription_dead_lettered_messages", "Messages dead-lettered.", "subscription"
)
REBALANCES = _counter(
    "subscription_rebalances", "Rebalances of the consumer group.", "subscription"
)
TIME_IN_QUEUE = _histogram(
    "subscription_time_in_queue_seconds",
    "Time from storing a message to its acknowledgement.",
    "subscription",
)

SUBSCRIPTION = (
    MESSAGES,
    LAG,
    PARTITION_LAG,
    COMMITTED_OFFSET,
    OLDEST_AGE,
    DELIVERED,
    DELIVERED_BYTES,
    REDELIVERED,
    ACKED,
    NACKED,
    DEAD_LETTERED,
    REBALANCES,
    TIME_IN_QUEUE,
)

# ------------------------------------------------------------------ the cluster

REPLICATION_LAG = _gauge(
    "replication_lag_messages", "Messages that the slowest replica of a topic is behind.", "topic"
)
IN_SYNC = _gauge(
    "replicas_in_sync", "In-sync replicas of a topic's partition that has the fewest.", "topic"
)
ELIGIBLE = _gauge(
    "replicas_eligible",
    "Replicas that are not in sync and may still become leader, over all partitions of a topic.",
    "topic",
)
REPLICAS_MISSING = _gauge(
    "replicas_missing", "Replicas that are not in sync, over all partitions of a topic.", "topic"
)
LEADER_CHANGES = _counter("leader_changes", "Leader changes of partitions.", "topic")
NODES_DOWN = _gauge("nodes_down", "Nodes of the cluster that are down.")
FORWARDERS = _gauge("forwarders", "Live forwarders that are connected with this node.")

CLUSTER = (
    REPLICATION_LAG,
    IN_SYNC,
    ELIGIBLE,
    REPLICAS_MISSING,
    LEADER_CHANGES,
    NODES_DOWN,
    FORWARDERS,
)

# ------------------------------------------------------------------ mirrors

MIRROR_LAG = _gauge(
    "mirror_lag_messages", "Messages of the source that are not copied yet.", "mirror", "topic"
)
MIRROR_LAG_BYTES = _gauge(
    "mirror_lag_bytes", "About how many stored bytes are not copied yet.", "mirror", "topic"
)
MIRROR_LAG_SECONDS = _gauge(
    "mirror_lag_seconds",
    "For how long the copy has not had everything that the source had; 0 if it has.",
    "mirror",
    "topic",
)
MIRROR_STATE_LAG = _gauge(
    "mirror_state_lag_seconds",
    "Age of the copied delivery state of subscriptions, where it is copied.",
    "mirror",
    "topic",
)
MIRROR_BYTES = _counter("mirror_copied_bytes", "Bytes of entries copied.", "mirror", "topic")
MIRROR_GAPS = _counter(
    "mirror_gap_messages",
    "Messages that retention at the source removed before they were copied.",
    "mirror",
    "topic",
)
MIRROR_MISSING = _gauge(
    "mirror_missing_messages",
    "Messages that the copy lacks because retention at the source removed them first, ever.",
    "mirror",
    "topic",
)
MIRROR_BROKEN = _gauge(
    "mirror_partitions_broken",
    "Partitions that are not copied because the source has other messages.",
    "mirror",
    "topic",
)
MIRROR_SOURCE_BROKEN = _gauge(
    "mirror_source_broken",
    "Whether the source refuses the mirror, or has not answered even once for a minute: 1 or 0.",
    "mirror",
)

MIRROR = (
    MIRROR_LAG,
    MIRROR_LAG_BYTES,
    MIRROR_LAG_SECONDS,
    MIRROR_STATE_LAG,
    MIRROR_BYTES,
    MIRROR_GAPS,
    MIRROR_MISSING,
    MIRROR_BROKEN,
    MIRROR_SOURCE_BROKEN,
)

GROUPS = {
    "The node": NODE,
    "Topics": TOPIC,
    "Subscriptions and queues": SUBSCRIPTION,
    "The cluster": CLUSTER,
    "Mirrors": MIRROR,
}
DEFINITIONS = tuple(one for group in GROUPS.values() for one in group)
