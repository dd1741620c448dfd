"""An alert, from the threshold to the console: the badge on every page, and the page itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import quiver
from tests.serving import Served, eventually, served

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
        row.get_by_role("link", name="emails").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("emails")
        page.get_by_role("navigation").get_by_role("link", name="Alerts").click()
        client.purge("emails")
        expect(badge).to_be_hidden(timeout=10_000)
        expect(page.get_by_text("No alerts are firing.")).to_be_visible()
        expect(row).to_contain_text("cleared")
    page.close()


def test_an_internal_topic_is_never_preselected(browser: Browser, watched: Served) -> None:
    page = browser.new_page()
    with quiver.Client(watched.url) as client:
        client.create_queue("emails")
        client.publish_many("emails", [1, 2, 3])
        page.goto(f"{watched.http}/console#/alerts")
        expect(page.get_by_role("row", name="emails-deep")).to_be_visible(timeout=10_000)
        eventually(
            lambda: "__alerts" in [topic.name for topic in client.list_topics()],
            "the alert is stored",
        )
    page.goto(f"{watched.http}/console#/publish")
    page.reload()
    expect(page.get_by_label("Topic")).to_have_value("emails")
    expect(page.locator("option")).to_have_text(["emails", "JSON", "text"])
    page.goto(f"{watched.http}/console#/messages")
    source = page.get_by_label("Source")
    expect(source).to_have_value("topic:emails")
    expect(source.locator("optgroup[label='Internal topics'] option")).to_have_text(["__alerts"])
    page.goto(f"{watched.http}/console#/topics")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Show dead-letter and internal topics").check()
    expect(page.locator("tbody tr td:first-child")).to_have_text(
        ["__alerts", "emails", "emails.dlq"]
    )
    page.close()
