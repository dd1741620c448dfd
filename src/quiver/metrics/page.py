"""The reference page of the metrics, made from their definitions: ``python -m quiver.metrics.page``."""

from __future__ import annotations

from quiver.metrics.definitions import GROUPS, Definition
from quiver.metrics.traffic import OTHERS

_PAGE = f"""\
# Metrics of a node

`GET /metrics` serves these metrics in the Prometheus text format. With authentication, the token needs
`consume:cluster:*`. Values may be up to two seconds old, because all scrapes share one sample.

Each name ends in its unit. The first `metrics.names_max` topics, and as many subscriptions, have metrics of
their own while they exist. All others share the label `{OTHERS}`: their sum, or for an age the oldest. A
histogram without values is left out. The subscription of a queue has the queue's name. Metrics of the
cluster appear only in a cluster. The usual metrics of the process are there too, such as
`process_resident_memory_bytes`, `process_cpu_seconds_total` and `process_open_fds`.

If [several processes](../howto/scale.md) serve the data folder, the text has the metrics of all of them,
whichever answers. Each sample has the label `process` then: the number of the process that it is of.
"""


def reference_page() -> str:
    return _PAGE + "".join(_section(title, group) for title, group in GROUPS.items())


def _section(title: str, group: tuple[Definition, ...]) -> str:
    rows = [f"| `{one.name}` | {one.kind} | {_labels(one)} | {one.help} |" for one in group]
    table = "\n".join(("| name | kind | labels | meaning |", "| --- | --- | --- | --- |", *rows))
    return f"\n## {title}\n\n{table}\n"


def _labels(one: Definition) -> str:
    return ", ".join(f"`{label}`" for label in one.labels)


if __name__ == "__main__":
    print(reference_page(), end="")
