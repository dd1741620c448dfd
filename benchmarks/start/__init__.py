"""What Quiver costs before it does anything: on disk, for help, to start, and idle in memory."""

from benchmarks.start.command import show_help
from benchmarks.start.installation import weigh_the_installation
from benchmarks.start.node import start_and_idle

BENCHMARKS = (weigh_the_installation, show_help, start_and_idle)
