"""Writes every page that is generated: ``make pages``.

Most are reference pages, made from the code. The figures of the benchmarks come from the results that
are kept.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import kept

from pages import command_line, http_api, python_api, topic_settings
from quiver.config import alert_page, document
from quiver.metrics import page as metrics_page

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGES = {
    REFERENCE / "alerts.md": alert_page.reference_page,
    REFERENCE / "commands.md": command_line.reference_page,
    REFERENCE / "http-api.md": http_api.reference_page,
    REFERENCE / "metrics.md": metrics_page.reference_page,
    REFERENCE / "python.md": python_api.reference_page,
    REFERENCE / "settings.md": document.reference_page,
    REFERENCE / "topic-settings.md": topic_settings.reference_page,
    **kept.PAGES,
}


def main() -> None:
    for path, make in PAGES.items():
        path.write_text(make())


if __name__ == "__main__":
    main()
