"""The console on a phone, in both themes, and what a keyboard and a screen reader need."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.serving import Served

WIDTH = 375
PLACES = {
    "Overview": "#/",
    "Topics": "#/topics/orders",
    "Queues": "#/queues/billing",
    "Messages": "#/messages/orders",
    "Dead letters": "#/dead/payments",
    "Publish": "#/publish",
    "Alerts": "#/alerts",
    "Nodes": "#/nodes",
    "Tokens": "#/tokens",
}
CUT = """() => [...document.querySelectorAll("button:not(th button)")]
    .filter((one) => one.checkVisibility())
    .map((one) => [one.textContent, one.getBoundingClientRect()])
    .filter(([, box]) => box.left < 0 || box.right > innerWidth).map(([text]) => text)"""
UNNAMED = """() => [...document.querySelectorAll("input, select, textarea, button, a[href]")]
    .filter((one) => one.checkVisibility())
    .filter((one) => !one.labels?.length && !one.textContent.trim() && !one.getAttribute("aria-label"))
    .map((one) => one.outerHTML)"""
CONTRAST = """() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const light = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((one) => one / 255)
            .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const pairs = [["--text", "--back"], ["--soft", "--back"], ["--soft", "--card"], ["--accent", "--card"],
        ["--accent", "--accent-back"], ["--bad", "--bad-back"], ["--warn", "--warn-back"],
        ["--card", "--accent"]];
    return pairs.map(([one, other]) => {
        const [low, high] = [light(read(one)), light(read(other))].sort((a, b) => a - b);
        return [one, other, (high + 0.05) / (low + 0.05)];
    });
}"""


def test_on_a_phone_no_button_is_cut_off_and_the_tab_is_in_sight(page: Page, node: Served) -> None:
    page.set_viewport_size({"width": WIDTH, "height": 740})
    for title, place in PLACES.items():
        page.goto(f"{node.http}/console{place}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_load_state("networkidle")
        tab = page.locator("nav [aria-current='page']")
        expect(tab).to_contain_text(title)
        expect(tab).to_be_in_viewport(ratio=0.99)
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH, title
        assert page.evaluate(CUT) == [], title


def test_sheets_fit_a_phone(page: Page, node: Served) -> None:
    page.set_viewport_size({"width": WIDTH, "height": 600})
    page.goto(f"{node.http}/console#/queues")
    page.get_by_role("button", name="New queue").click()
    sheet = page.get_by_role("dialog")
    sheet.get_by_text("All settings").click()
    for name in ("Cancel", "Create queue"):
        expect(sheet.get_by_role("button", name=name)).to_be_in_viewport(ratio=0.99)
    assert page.evaluate(CUT) == []
    page.keyboard.press("Escape")
    expect(sheet).to_have_count(0)


def test_everything_that_can_be_used_has_a_name(page: Page, node: Served) -> None:
    for title, place in PLACES.items():
        page.goto(f"{node.http}/console{place}")
        page.wait_for_load_state("networkidle")
        assert page.evaluate(UNNAMED) == [], title
    page.goto(f"{node.http}/console#/queues")
    page.get_by_role("button", name="New subscription").click()
    page.get_by_role("dialog").get_by_text("All settings").click()
    assert page.evaluate(UNNAMED) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(browser: Browser, node: Served, theme: str) -> None:
    opened = browser.new_page(color_scheme="light" if theme == "light" else "dark")
    for address in ("/console", "/docs"):
        opened.goto(f"{node.http}{address}")
        for one, other, contrast in opened.evaluate(CONTRAST):
            assert contrast >= 4.5, (address, one, other)
    opened.close()
