"""Pipelines as functions that take and return DataFrames, and as ``quiver pipeline run``."""

from quiver.spark.pipelines.archive import archived
from quiver.spark.pipelines.consumption import by_subscription
from quiver.spark.pipelines.dead_letters import dead_letter_groups
from quiver.spark.pipelines.dedupe import deduplicated
from quiver.spark.pipelines.join import joined
from quiver.spark.pipelines.logs import alerts, level_counts, parsed_lines
from quiver.spark.pipelines.metrics import by_window
from quiver.spark.pipelines.replay import in_key_order

__all__ = [
    "alerts",
    "archived",
    "by_subscription",
    "by_window",
    "dead_letter_groups",
    "deduplicated",
    "in_key_order",
    "joined",
    "level_counts",
    "parsed_lines",
]
