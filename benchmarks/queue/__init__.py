"""Subscriptions and queues of a node: receiving, acknowledging, fan-out, backlogs, many queues."""

from benchmarks.queue.backlog import hold_a_million
from benchmarks.queue.many import hold_many_queues
from benchmarks.queue.push import push_to_a_waiting_receive
from benchmarks.queue.receive import (
    fan_out,
    receive_and_ack,
    receive_one_at_a_time,
    receive_with_one_client,
)

BENCHMARKS = (
    receive_and_ack,
    receive_with_one_client,
    receive_one_at_a_time,
    fan_out,
    push_to_a_waiting_receive,
    hold_a_million,
    hold_many_queues,
)
