"""The cost of one: a request that waits for its answer before the next, beside Redis and Kafka."""

from benchmarks.one.lists import publish_lists
from benchmarks.one.lone import ask_one_at_a_time
from benchmarks.one.replicated import publish_replicated

BENCHMARKS = (ask_one_at_a_time, publish_lists, publish_replicated)
