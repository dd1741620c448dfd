"""Mirrors in the console: added, watched, paused, altered, promoted and removed."""

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


def test_a_mirror_is_added_by_a_form_altered_and_removed(browser: Browser, tmp_path: Path) -> None:
    with (
        served(tmp_path / "eu", "--authentication") as eu,
        served(tmp_path / "us") as us,
        quiver.Client(eu.url, token=(eu.data / "admin.token").read_text().strip()) as there,
        quiver.Client(us.url) as here,
    ):
        there.create_topic("orders")
        there.publish_many("orders", [b"1", b"2", b"3"])
        _, token = there.create_token("copy", ["consume:orders"])
        page = browser.new_page()
        page.goto(f"{us.http}/console#/mirrors")
        page.get_by_role("button", name="New mirror").click()
        sheet = page.get_by_role("dialog")
        sheet.get_by_label("Name", exact=True).fill("eu")
        sheet.get_by_label("Topics").fill("orders, clicks")
        sheet.get_by_label("Token").fill("qv_wrong")
        expect(sheet.get_by_label("Token")).to_have_attribute("type", "password")
        sheet.get_by_role("button", name="Add mirror").click()
        expect(sheet.get_by_label("Source")).to_have_attribute("aria-invalid", "true")
        sheet.get_by_label("Source").fill(eu.url)
        sheet.get_by_role("button", name="Add mirror").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("eu")
        expect(page.get_by_text("broken").first).to_be_visible(timeout=20_000)
        expect(page.get_by_role("alert")).to_contain_text("token", timeout=20_000)
        assert here.describe_mirror("eu").settings.topics == ["orders", "clicks"]

        page.get_by_role("button", name="Edit settings…").click()
        sheet.get_by_label("Token").fill(str(token))
        sheet.get_by_role("button", name="Save").click()
        expect(page.get_by_role("row", name="orders")).to_contain_text("copying", timeout=20_000)
        expect(page.get_by_role("alert")).to_contain_text("clicks is not copied")
        assert here.describe_mirror("eu").settings.topics == ["orders", "clicks"]

        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("row", name="orders")).to_contain_text("paused", timeout=20_000)
        page.get_by_role("button", name="Remove…").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert [one.name for one in here.list_mirrors()] == ["eu"]
        page.get_by_role("button", name="Remove…").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        expect(page.get_by_text("The mirror eu is removed.")).to_be_visible()
        expect(page.get_by_text("No mirrors yet.")).to_be_visible()
        assert here.list_mirrors() == []
        assert [one.name for one in here.list_topics()] == ["orders"]
        page.close()
