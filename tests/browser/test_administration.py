"""Topics, queues, subscriptions and tokens are created, altered and deleted in the console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import quiver
from tests.browser.test_sign_in import sign_in
from tests.serving import Served, eventually, served


@pytest.fixture
def client(node: Served) -> Iterator[quiver.Client]:
    with quiver.Client(node.url) as opened:
        yield opened


def setting(page: Page, name: str) -> str:
    return page.locator(f"[data-setting='{name}'] dd > div").first.inner_text()


def test_a_queue_is_created_altered_and_deleted(
    page: Page, node: Served, client: quiver.Client
) -> None:
    page.goto(f"{node.http}/console#/queues")
    page.get_by_role("button", name="New queue").click()
    sheet = page.get_by_role("dialog")
    sheet.get_by_label("Name").fill("invoices")
    sheet.get_by_label("Visibility timeout").fill("soon")
    sheet.get_by_role("button", name="Create queue").click()
    expect(sheet.get_by_label("Visibility timeout")).to_have_attribute("aria-invalid", "true")
    expect(sheet.get_by_label("Visibility timeout")).to_be_focused()
    expect(
        sheet.locator(".field", has_text="Visibility timeout").get_by_role("alert")
    ).to_contain_text("visibility")
    sheet.get_by_label("Visibility timeout").fill("1m30s")
    sheet.get_by_text("All settings").click()
    sheet.get_by_label("Ordering").select_option("key")
    sheet.get_by_role("group", name="Retention").get_by_label("Age", exact=True).fill("3d")
    sheet.get_by_role("button", name="Create queue").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("invoices")
    made = client.describe_subscription("invoices").settings
    assert (made.visibility, made.ordering) == (90, "key")
    assert client.describe_topic("invoices").settings.retention.age == 3 * 86_400
    assert setting(page, "visibility") == "1m30s"
    assert setting(page, "retention.age") == "3d"

    page.get_by_role("button", name="Edit settings…").click()
    expect(sheet.get_by_label("Visibility timeout")).to_have_value("1m30s")
    sheet.get_by_label("Max deliveries").fill("7")
    sheet.get_by_role("button", name="Save").click()
    expect(page.locator("[data-setting='max_deliveries']")).to_contain_text("7")
    assert client.describe_subscription("invoices").settings.max_deliveries == 7

    client.publish("invoices", "x")
    page.get_by_role("button", name="Delete…").click()
    sheet.get_by_role("button", name="Delete").click()
    expect(sheet.get_by_role("alert")).to_contain_text("Type invoices")
    sheet.get_by_label("Type invoices to confirm").fill("invoices")
    sheet.get_by_role("button", name="Delete").click()
    expect(page.locator("#notices")).to_contain_text("invoices is deleted")
    assert not {"invoices", "invoices.dlq"} & {one.name for one in client.list_subscriptions()}


def test_a_topic_and_a_subscription_are_created_and_deleted(
    page: Page, node: Served, client: quiver.Client
) -> None:
    page.goto(f"{node.http}/console#/topics")
    page.get_by_role("button", name="New topic").click()
    sheet = page.get_by_role("dialog")
    sheet.get_by_label("Name").fill("clicks")
    sheet.get_by_label("Partitions").fill("0")
    sheet.get_by_role("button", name="Create topic").click()
    expect(sheet.get_by_label("Partitions")).to_have_attribute("aria-invalid", "true")
    sheet.get_by_label("Partitions").fill("2")
    sheet.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("clicks")
    assert len(client.describe_topic("clicks").partitions) == 2

    page.goto(f"{node.http}/console#/queues")
    page.get_by_role("button", name="New subscription").click()
    sheet.get_by_label("Name").fill("counting")
    sheet.get_by_label("Topics").fill("clicks")
    sheet.get_by_label("Filter").fill("priority >= 5")
    sheet.get_by_role("button", name="Create subscription").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("counting")
    assert setting(page, "filter") == "priority >= 5"

    page.get_by_role("button", name="Delete…").click()
    sheet.get_by_role("button", name="Delete").click()
    expect(page.locator("#notices")).to_contain_text("counting is deleted")
    page.goto(f"{node.http}/console#/topics/clicks")
    page.get_by_role("button", name="Delete…").click()
    sheet.get_by_role("button", name="Delete").click()
    eventually(lambda: "clicks" not in [one.name for one in client.list_topics()], "it is deleted")


def test_what_is_emptied_is_taken_away_and_a_name_is_taken_once(
    page: Page, node: Served, client: quiver.Client
) -> None:
    client.create_subscription("picky", topics=["orders"], filter="priority >= 5")
    page.goto(f"{node.http}/console#/queues/picky")
    sheet = page.get_by_role("dialog")
    page.get_by_role("button", name="Edit settings…").click()
    sheet.get_by_label("Filter").fill("priority >=")
    sheet.get_by_role("button", name="Save").click()
    expect(sheet.get_by_label("Filter")).to_have_attribute("aria-invalid", "true")
    sheet.get_by_label("Filter").fill("")
    sheet.get_by_text("All settings").click()
    push = sheet.get_by_role("group", name="Push")
    push.get_by_label("Url").fill("http://127.0.0.1:9/hook")
    sheet.get_by_role("button", name="Save").click()
    expect(sheet.get_by_role("alert").filter(has_text="webhook_targets")).to_be_visible()
    push.get_by_label("Url").fill("")
    sheet.get_by_role("button", name="Save").click()
    expect(page.locator("[data-setting='filter']")).to_contain_text("all messages")
    assert client.describe_subscription("picky").settings.filter is None

    page.goto(f"{node.http}/console#/queues")
    page.get_by_role("button", name="New subscription").click()
    sheet.get_by_label("Name").fill("picky")
    sheet.get_by_label("Topics").fill("orders")
    sheet.get_by_role("button", name="Create subscription").click()
    expect(sheet.get_by_role("alert").first).to_contain_text("already a subscription named picky")
    sheet.get_by_role("button", name="Cancel").click()
    client.delete_subscription("picky")


def test_a_queue_shows_its_back_off_dead_letters_filter_and_push(page: Page, node: Served) -> None:
    page.goto(f"{node.http}/console#/queues/billing")
    expect(page.locator("[data-setting='backoff']")).to_contain_text(
        "1s, then 2 times as long each time, up to 10m"
    )
    assert setting(page, "filter") == "all messages"
    assert setting(page, "push") == "no push"
    letters = page.locator("[data-setting='dead_letter']").get_by_role("link")
    expect(letters).to_have_text("billing.dlq")
    letters.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, QUIVER_SECURITY_AUTHENTICATION="true") as running:
        yield running


def test_a_token_is_shown_once_and_revoked(browser: Browser, guarded: Served) -> None:
    admin = (guarded.data / "admin.token").read_text().strip()
    page = browser.new_page()
    page.goto(f"{guarded.http}/console#/tokens")
    sign_in(page, admin)
    page.get_by_role("button", name="New token").click()
    sheet = page.get_by_role("dialog")
    sheet.get_by_label("Name", exact=True).fill("shop")
    sheet.get_by_label("Grants").fill("fly:orders")
    sheet.get_by_role("button", name="Create token").click()
    expect(sheet.get_by_role("alert").filter(has_text="fly:orders")).to_be_visible()
    sheet.get_by_label("Grants").fill("consume:orders")
    sheet.get_by_role("button", name="Create token").click()
    token = sheet.get_by_label("Token", exact=True)
    expect(token).to_be_visible()
    secret = token.input_value()
    sheet.get_by_role("button", name="Copy").click()
    expect(sheet.get_by_role("status")).to_be_visible()
    sheet.get_by_role("button", name="Done").click()
    assert secret not in page.content()
    row = page.get_by_role("row", name="shop")
    expect(row).to_contain_text("active")

    # Whoever may not do something is told so, plainly.
    page.get_by_role("button", name="Sign out").click()
    sign_in(page, secret)
    expect(page.get_by_role("alert")).to_contain_text("admin on cluster")
    page.goto(f"{guarded.http}/console#/queues")
    page.get_by_role("button", name="New queue").click()
    sheet.get_by_label("Name").fill("mine")
    sheet.get_by_role("button", name="Create queue").click()
    expect(sheet.get_by_role("alert").first).to_contain_text("shop has no grant for admin")
    sheet.get_by_role("button", name="Cancel").click()

    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{guarded.http}/console#/tokens")
    sign_in(page, admin)
    row.get_by_role("button", name="Revoke…").click()
    sheet.get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    page.close()


def test_an_empty_node_says_what_to_do_first(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path) as empty:
        page = browser.new_page()
        page.goto(f"{empty.http}/console")
        expect(page.get_by_role("heading", name="This node is empty")).to_be_visible()
        page.get_by_role("navigation").get_by_role("link", name="Publish").click()
        expect(page.get_by_text("There is no topic to publish to yet.")).to_be_visible()
        expect(page.get_by_role("button", name="Create a queue")).to_be_visible()
        page.get_by_role("navigation").get_by_role("link", name="Overview").click()
        page.get_by_role("button", name="Create a queue").click()
        sheet = page.get_by_role("dialog")
        sheet.get_by_label("Name").fill("first")
        sheet.get_by_role("button", name="Create queue").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Publish a test message")
        expect(page.get_by_label("Topic")).to_have_value("first")
        page.get_by_role("button", name="Publish").click()
        expect(page.get_by_text("Stored in partition 0")).to_be_visible()
        page.get_by_role("navigation").get_by_role("link", name="Overview").click()
        expect(page.locator(".tile", has_text="Pending").first.locator("dd")).to_have_text("1")
        expect(page.get_by_role("heading", name="This node is empty")).to_be_hidden()
        page.close()
