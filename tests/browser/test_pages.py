"""What the console's pages say of themselves: unknown places, dead-letter queues, labels of axes."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.scene import POISON
from tests.serving import Served

LABELS = """
    import("/console/axes.js").then((axes) => [...Array(4000).keys()].flatMap((one) => {
        const greatest = one < 2000 ? one / 40 : 1.006 ** one / 1000;
        return [axes.counts, axes.ages, axes.latencies].map(({ scale, label }) => {
            const { step, end } = scale(greatest);
            const values = [...Array(Math.round(end / step) + 1).keys()].map((place) => place * step);
            return [greatest, end, values.map((value) => label(value, step))];
        });
    }))
"""


def test_no_two_labels_of_an_axis_are_the_same(page: Page) -> None:
    axes = page.evaluate(LABELS)
    assert len(axes) == 12_000
    for greatest, end, labels in axes:
        assert end >= greatest
        assert 2 <= len(labels) <= 6, labels
        assert len(set(labels)) == len(labels), labels
    shown = page.get_by_role("img", name="Depth by state").get_attribute("data-labels")
    assert shown is not None
    assert shown.startswith("0|")


def test_an_unknown_address_says_so(page: Page, node: Served) -> None:
    for place in ("#/nothing", "#/alerts/x", "#/%"):
        page.goto(f"{node.http}/console{place}")
        expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")
        expect(page.locator("main")).to_contain_text(place)
        expect(page.locator("nav [aria-current]")).to_have_count(0)
    page.get_by_role("link", name="Go to the overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def test_a_queue_that_is_not_there_says_so(page: Page, node: Served) -> None:
    page.goto(f"{node.http}/console#/queues/nobody")
    expect(page.get_by_role("heading", level=1)).to_have_text("nobody")
    expect(page.get_by_role("alert")).to_contain_text("nobody")
    page.get_by_role("link", name="Go to queues").click()
    expect(page.get_by_role("link", name="billing")).to_be_visible()


def test_dead_letter_queues_are_shown_with_their_queue(page: Page, node: Served) -> None:
    names = page.locator("tbody tr td:first-child")
    letters = names.filter(has_text=".dlq")
    expect(names.filter(has_text="payments")).to_have_text(["payments"])
    expect(letters).to_have_count(0)
    page.goto(f"{node.http}/console#/queues")
    expect(names.filter(has_text="payments")).to_have_text(["payments"])
    expect(letters).to_have_count(0)
    page.get_by_label("Show dead-letter queues").check()
    expect(names.filter(has_text="payments")).to_have_text(["payments", "payments.dlq"])
    page.get_by_label("Show dead-letter queues").uncheck()
    page.get_by_label("Search by name").fill("payments.d")
    expect(names).to_have_text(["payments.dlq"])
    page.get_by_label("Search by name").fill("")
    page.get_by_role("row", name="payments").get_by_role("link", name=str(POISON + 1)).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")
