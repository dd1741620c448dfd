"""The consumer stream: a worker's loop of ``consume`` and ``ack``, beside Redis and RabbitMQ."""

from benchmarks.consume.end_to_end import deliver_end_to_end
from benchmarks.consume.idle import wait_idle
from benchmarks.consume.one_by_one import consume_one_by_one
from benchmarks.consume.workers import share_a_queue

BENCHMARKS = (
    consume_one_by_one,
    share_a_queue,
    deliver_end_to_end,
    wait_idle,
)
