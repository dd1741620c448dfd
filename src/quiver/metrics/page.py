"""The reference page of the figures, made from their definitions: ``python -m quiver.metrics.page``."""

from __future__ import annotations

from quiver.metrics.definitions import GROUPS, Definition
from quiver.metrics.traffic import OTHERS

_PAGE = f"""\
# Figures of a node

`GET /metrics` answers with these in the text format of Prometheus. With authentication the token needs
`consume:cluster:*`. What is answered may be a second or two old: however many ask, the node looks once.

Each name below carries its unit. The first `metrics.names_max` topics, and as many subscriptions, are
shown one by one for as long as they exist; all others together as `{OTHERS}`, added up, or as the oldest of
them for an age. A histogram of which nothing was seen is left out. A queue's subscription has the queue's
name. Figures about the cluster appear once there is one. Beside these there are the usual figures of the
process, such as `process_resident_memory_bytes`, `process_cpu_seconds_total` and `process_open_fds`.
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
