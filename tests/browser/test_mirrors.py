"""Mirrors in the console: how far they are, pause, resume and promote."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

import quiver
from tests.serving import served


def test_a_mirror_is_watched_paused_resumed_and_promoted(browser: Browser, tmp_path: Path) -> None:
    with (
        served(tmp_path / "eu") as eu,
        served(tmp_path / "us") as us,
        quiver.Client(eu.url) as there,
        quiver.Client(us.url) as here,
    ):
        there.create_topic("orders")
        there.publish_many("orders", [b"1", b"2", b"3"])
        here.create_mirror("eu", eu.url, "orders")
        page = browser.new_page()
        page.goto(f"{us.http}/console#/mirrors")
        row = page.get_by_role("row", name="copying")
        expect(row).to_contain_text("orders", timeout=20_000)
        row.get_by_role("link", name="eu").click()
        copy = page.get_by_role("row", name="orders")
        expect(copy).to_contain_text("copying", timeout=20_000)
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume")).to_be_visible(timeout=20_000)
        assert here.describe_mirror("eu").settings.paused
        page.get_by_role("button", name="Resume").click()
        copy.get_by_role("link", name="orders").click(timeout=20_000)
        expect(page.get_by_text("A copy of orders, from the mirror eu.")).to_be_visible()
        page.get_by_role("link", name="eu", exact=True).click()
        expect(copy).to_contain_text("copying", timeout=20_000)
        page.get_by_role("button", name="Promote…").click()
        page.get_by_role("dialog").get_by_role("button", name="Promote").click()
        expect(page.get_by_text("The copies are promoted.")).to_be_visible(timeout=30_000)
        here.publish("orders", b"4")
        page.close()
