"""Settings for all tests: a busy machine is no failure, so no example of Hypothesis has a deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quiver", deadline=None)
settings.load_profile("quiver")
