"""The page at ``/docs`` in a browser: a person sends, receives and deletes a message there."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, expect

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
    expect(page.locator("#messages pre")).to_contain_text("<b>hello</b>")
    page.get_by_role("button", name="Delete").click()
    expect(status).to_have_text("Deleted.")
    expect(page.locator("#messages")).to_be_hidden()
    page.close()
