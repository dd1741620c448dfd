"""The page at ``/docs`` in a browser: a person sends, receives and deletes a message there."""

from __future__ import annotations

from playwright.sync_api import Browser, BrowserContext, expect

from tests.serving import Served


def test_a_message_is_sent_received_and_deleted_from_the_page(
    context: BrowserContext, node: Served
) -> None:
    page = context.new_page()
    page.goto(f"{node.http}/docs")
    status = page.locator("#status")
    page.locator("#queue").fill("from-docs")
    page.get_by_role("button", name="Create queue").click()
    expect(status).to_have_text("The queue is there.")
    page.locator("#message").fill('{"greeting": "<b>hello</b>"}')
    page.get_by_role("button", name="Send").click()
    expect(status).to_contain_text("Stored as ")
    page.get_by_role("button", name="Receive").click()
    expect(status).to_have_text("1 received.")
    expect(page.locator("#messages .body")).to_contain_text("<b>hello</b>")
    page.get_by_role("button", name="Delete").click()
    expect(status).to_have_text("Deleted.")
    expect(page.locator("#messages")).to_be_hidden()
    page.close()


def test_every_path_is_described_with_its_fields_and_an_example(
    context: BrowserContext, node: Served
) -> None:
    page = context.new_page()
    page.goto(f"{node.http}/docs")
    page.get_by_role("navigation").get_by_role("link", name="Tokens").click()
    expect(page.get_by_role("heading", name="Tokens")).to_be_in_viewport()
    expect(page.locator("nav [aria-current]")).not_to_have_text("Try a queue")
    found = page.locator("details.operation", has_text="PUT/queues/{queue}")
    found.locator("summary").click()
    expect(found).to_contain_text("retention.unread_age")
    expect(found).to_contain_text("Delete messages that are older than this.")
    expect(found.locator("pre").first).to_contain_text(f"curl -X PUT '{node.http}/queues/emails'")
    page.get_by_role("link", name="Console").click()
    page.get_by_text("live").wait_for()
    page.close()


def test_the_page_looks_like_the_console_and_asks_no_other_machine(
    browser: Browser, node: Served
) -> None:
    page = browser.new_page(color_scheme="dark")
    asked: list[str] = []
    mistakes: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    look = """() => [".bar", "body", "h1", ".brand"].map((one) => {
        const { backgroundColor, color, fontFamily, fontSize } =
            getComputedStyle(document.querySelector(one));
        return [backgroundColor, color, fontFamily, fontSize];
    })"""
    page.goto(f"{node.http}/docs")
    page.locator("details.operation").first.wait_for()
    docs = page.evaluate(look)
    page.set_viewport_size({"width": 375, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.goto(f"{node.http}/console#/queues")
    page.get_by_role("heading", level=1).wait_for()
    assert page.evaluate(look) == docs
    assert mistakes == []
    assert {url for url in asked if not url.startswith(node.http)} == set()
    page.close()
