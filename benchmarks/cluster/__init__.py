"""Clusters on this machine: failover, replicated publishing, a thousand partitions, and scale."""

from benchmarks.cluster.failover import fail_over
from benchmarks.cluster.many import hold_a_thousand_partitions
from benchmarks.cluster.processes import serve_with_two_processes
from benchmarks.cluster.replication import publish_to_three_replicas
from benchmarks.cluster.scale_out import publish_to_more_nodes

BENCHMARKS = (
    fail_over,
    publish_to_three_replicas,
    hold_a_thousand_partitions,
    publish_to_more_nodes,
    serve_with_two_processes,
)
