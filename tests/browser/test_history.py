"""Charts show the last hour as soon as they are opened, and after a reload."""

from __future__ import annotations

import json
import time

from playwright.sync_api import Page, Route, expect

from tests.serving import Served

POINTS = 360
FIELDS = {
    "totals": ("published_rate", "finished_rate", "ready", "leased", "delayed", "dead", "oldest_s"),
    "node": ("connections", "answer_ms", "publish_p50_ms", "publish_p99_ms"),
    "subscriptions": ("ready", "leased", "delayed", "dead", "oldest_s"),
    "topics": ("rate", "messages"),
}


def keep_an_hour(page: Page) -> None:
    """Let the node answer as one that has run for an hour."""

    def answer(route: Route) -> None:
        now = int(time.time() * 1000)
        told: dict[str, object] = {
            "times_ms": [now - 10_000 * (POINTS + 9 - n) for n in range(POINTS)]
        }
        for kind, fields in FIELDS.items():
            told[kind] = dict.fromkeys(fields, [7] * POINTS)
        route.fulfill(body=json.dumps(told), content_type="application/json")

    page.route("**/console/history*", answer)


def test_charts_are_full_on_load_and_after_a_reload(page: Page, node: Served) -> None:
    keep_an_hour(page)
    for place, title in (
        ("#/", "Depth by state"),
        ("#/queues/billing", "Depth by state"),
        ("#/topics/orders", "Messages per second"),
        ("#/nodes", "Connections"),
    ):
        page.goto(f"{node.http}/console{place}")
        page.reload()
        chart = page.get_by_role("img", name=title)
        expect(chart).to_have_attribute("data-seconds", "3600")
        assert int(chart.get_attribute("data-points") or 0) >= POINTS - 10


def test_the_time_that_charts_show_is_chosen_and_remembered(page: Page, node: Served) -> None:
    keep_an_hour(page)
    page.reload()
    chart = page.get_by_role("img", name="Depth by state")
    expect(chart).to_have_attribute("data-seconds", "3600")
    page.get_by_role("button", name="5 minutes").click()
    expect(chart).to_have_attribute("data-seconds", "300")
    page.reload()
    expect(chart).to_have_attribute("data-seconds", "300")
    expect(page.get_by_role("button", name="5 minutes")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="1 hour").click()
    expect(chart).to_have_attribute("data-seconds", "3600")


def test_the_node_keeps_what_charts_show(page: Page) -> None:
    """The shared node takes a point every ten seconds, whoever looks."""
    page.wait_for_function(
        """() => fetch("/console/history?subscription=billing").then((reply) => reply.json())
            .then((told) => told.times_ms.length && told.subscriptions.ready.length)""",
        timeout=30_000,
        polling=500,
    )
