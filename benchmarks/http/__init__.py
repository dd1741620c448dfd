"""The HTTP and WebSocket edge of a node."""

from benchmarks.http.post import post_arrow, post_batches, post_from_few, post_one_at_a_time
from benchmarks.http.stream import push_json

BENCHMARKS = (post_one_at_a_time, post_from_few, post_batches, post_arrow, push_json)
