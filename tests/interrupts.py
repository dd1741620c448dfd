"""SIGINT for the run and for all its children, also in a run that a shell started in the background.

A shell without job control, ``make`` among them, ignores SIGINT in what it starts with ``&``, and
whoever is started from there inherits that: ``quiver top`` would not end with Ctrl-C in such a run.
"""

from __future__ import annotations

import signal


def restore_interrupts() -> None:
    """Let this process be interrupted, and with it every child that it starts from now on."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
