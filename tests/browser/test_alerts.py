"""An alert, from the threshold to the console: the badge on every page, and the page itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import quiver
from tests.serving import Served, served

RULES = """
[alerts]
interval_s = 0.1

[alerts.rules.emails-deep]
watch = "depth"
on = "emails"
limit = 2
severity = "critical"
"""


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Served]:
    settings = tmp_path / "quiver.toml"
    settings.write_text(RULES)
    with served(tmp_path / "node", "--config", str(settings)) as node:
        yield node


def test_an_alert_fires_and_clears_in_the_console(browser: Browser, watched: Served) -> None:
    page = browser.new_page()
    page.goto(f"{watched.http}/console#/alerts")
    expect(page.get_by_text("No alerts are firing.")).to_be_visible()
    badge = page.locator("nav .count")
    with quiver.Client(watched.url) as client:
        client.create_queue("emails")
        client.publish_many("emails", [1, 2, 3])
        expect(badge).to_have_text("1", timeout=10_000)
        row = page.get_by_role("row", name="emails-deep")
        expect(row).to_contain_text("critical")
        client.purge("emails")
        expect(badge).to_be_hidden(timeout=10_000)
        expect(page.get_by_text("No alerts are firing.")).to_be_visible()
        expect(row).to_contain_text("cleared")
    page.close()
