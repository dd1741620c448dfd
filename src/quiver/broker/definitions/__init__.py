"""Topics and subscriptions as users define them: created, altered, described and deleted."""
