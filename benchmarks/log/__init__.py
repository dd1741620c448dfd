"""The log alone: appending, reading, opening and memory, each against the plainest way to do it."""

from benchmarks.log.append import append_in_batches, append_one_at_a_time
from benchmarks.log.memory import stay_flat
from benchmarks.log.open import open_after_a_crash
from benchmarks.log.read import read_the_disk, read_the_tail

BENCHMARKS = (
    append_in_batches,
    append_one_at_a_time,
    read_the_disk,
    read_the_tail,
    open_after_a_crash,
    stay_flat,
)
