"""What it costs to watch a node: a scrape of its figures, and what counting and alerts take away."""

from benchmarks.observing.scraping import scrape_many_topics, watch_while_publishing
from benchmarks.observing.tracing import send_with_and_without_traces

BENCHMARKS = (scrape_many_topics, watch_while_publishing, send_with_and_without_traces)
