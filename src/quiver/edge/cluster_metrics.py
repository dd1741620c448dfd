"""Metrics of the cluster beside a node's own: replicas out of sync, nodes that are down.

One node reports each partition: its leader, or the controller if it has none. So the reports of all
nodes can be added up, and one alert fires.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from quiver.metrics.sample import NodeSample, TopicSample
from quiver.protocol import ClusterInfo, PartitionPlacement


def with_cluster(sample: NodeSample, cluster: ClusterInfo | None, node: str) -> NodeSample:
    """The sample of ``node`` with what it has to tell of the cluster, if it is in one."""
    if cluster is None:
        return sample
    is_controller = cluster.controller == node
    by_topic: dict[str, list[PartitionPlacement]] = defaultdict(list)
    for partition in cluster.partitions:
        by_topic[partition.topic].append(partition)
    return msgspec.structs.replace(
        sample,
        topics=[
            _with_replicas(one, by_topic.get(one.name, []), node, is_controller)
            for one in sample.topics
        ],
        nodes_down=[one.id for one in cluster.nodes if is_controller and not one.alive],
    )


def _with_replicas(
    topic: TopicSample, partitions: list[PartitionPlacement], node: str, is_controller: bool
) -> TopicSample:
    changes = sum(one.epoch for one in partitions)
    own = [one for one in partitions if (one.leader or (is_controller and node)) == node]
    if not own:
        return msgspec.structs.replace(topic, leader_changes=changes) if partitions else topic
    return msgspec.structs.replace(
        topic,
        in_sync=min(len(one.in_sync) for one in own),
        eligible=sum(len(one.eligible) for one in own),
        missing=sum(len(one.replicas) - len(one.in_sync) for one in own),
        leader_changes=changes,
    )
