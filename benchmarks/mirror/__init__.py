"""A mirror beside a reader of the same topic, what it takes of both nodes, and how late a copy is."""

from benchmarks.mirror.far import copy_over_a_far_link
from benchmarks.mirror.lag import copy_when_idle
from benchmarks.mirror.rate import copy_a_topic

BENCHMARKS = (copy_a_topic, copy_when_idle, copy_over_a_far_link)
