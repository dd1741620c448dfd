"""What it costs to watch a node: a scrape of its metrics, and what counting and alerts take away."""

from benchmarks.observability.scrape import scrape_many_topics, watch_while_publishing
from benchmarks.observability.traces import send_with_and_without_traces

BENCHMARKS = (scrape_many_topics, watch_while_publishing, send_with_and_without_traces)
