"""Each page of the console, opened and clicked through in Chromium while messages flow."""

from __future__ import annotations

import re
import time

from playwright.sync_api import Browser, Page, Route, expect

import quiver
from tests.browser.scene import DECLINED, HOSTILE, POISON, fail
from tests.serving import Served


def go(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=name).click()


def number(text: str) -> float:
    return float(text.replace(",", "").removesuffix("/s"))


def test_charts_move_within_two_seconds(page: Page) -> None:
    canvas = page.locator("canvas").first
    canvas.wait_for()
    page.wait_for_function("() => document.querySelector('canvas').dataset.points >= 2")
    before = canvas.evaluate("one => [one.dataset.points, one.toDataURL()]")
    began = time.monotonic()
    page.wait_for_function(
        """before => {
            const one = document.querySelector("canvas");
            return one.dataset.points !== before[0] && one.toDataURL() !== before[1];
        }""",
        arg=before,
        timeout=2000,
    )
    assert time.monotonic() - began < 2.5
    assert page.locator("canvas").count() == 4


def test_the_overview_shows_the_traffic_that_there_is(page: Page) -> None:
    published = page.locator(".tile", has_text="Published").locator("dd")
    expect(published).not_to_have_text("0/s")
    expect(published).not_to_have_text("—")
    assert 5 <= number(published.inner_text()) <= 60
    pending = page.get_by_role("row", name="audit").get_by_role("cell").nth(2)
    first = number(pending.inner_text())
    expect(pending).not_to_have_text(f"{first:,.0f}")
    assert number(pending.inner_text()) > first


def test_the_overview_shows_how_long_publishes_take(page: Page) -> None:
    slowest = page.locator(".tile", has_text="Publish p99").locator("dd")
    expect(slowest).to_have_text(re.compile(r"^[\d.]+ ms$"))
    chart = page.get_by_role("img", name="Publish latency")
    expect(chart).to_have_attribute("data-last", re.compile(r"^[\d.]+ [\d.]+$"))


def test_topics_are_listed_sorted_and_searched(page: Page) -> None:
    go(page, "Topics")
    names = page.locator("tbody tr td:first-child")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    listed = names.all_inner_texts()
    assert listed == sorted(listed)
    assert {"emails", "orders"} <= set(listed)
    page.get_by_role("button", name="Partitions").click()
    expect(names.first).to_have_text("orders")
    page.get_by_label("Search by name").fill("payments.d")
    expect(names).to_have_text(["payments.dlq"])


def test_a_topic_shows_its_partitions_as_they_grow(page: Page) -> None:
    go(page, "Topics")
    page.get_by_role("link", name="orders").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    rows = page.locator("table tbody tr")
    expect(rows).to_have_count(4)
    ends = "[...document.querySelectorAll('tbody tr td:nth-child(7)')].map(td => td.textContent).join()"
    page.wait_for_function(f"before => {ends} !== before", arg=page.evaluate(ends))
    expect(page.get_by_role("link", name="billing")).to_be_visible()
    expect(rows.first.get_by_role("cell").nth(2)).to_have_text("node-1")
    expect(rows.first.get_by_role("cell").nth(3)).to_have_text("1 of 1")


def test_queues_show_their_depth_by_state(page: Page) -> None:
    go(page, "Queues")
    cells = page.get_by_role("row", name="emails").get_by_role("cell")
    expect(cells).to_contain_text(["emails", "queue", "2", "1", "0", "1"])
    dead = page.get_by_role("row", name="payments queue").first.get_by_role("cell").nth(6)
    expect(dead).to_have_text(str(POISON + 1))


def test_members_of_a_group_are_shown(page: Page, node: Served) -> None:
    with quiver.Client(node.url) as client:
        client.receive("audit", 1, consumer="auditor-1", wait=1)
        page.goto(f"{node.http}/console#/queues/audit")
        row = page.get_by_role("row", name="auditor-1")
        expect(row).to_contain_text("orders")


def test_whoever_consumes_is_shown(page: Page, node: Served) -> None:
    with quiver.Client(node.url) as client:
        client.create_queue("held", exist_ok=True)
        client.publish("held", "x")
        client.receive("held", 1, consumer="worker-7", wait=5)
        page.goto(f"{node.http}/console#/queues/held")
        expect(page.get_by_role("row", name="worker-7")).to_be_visible()
        client.delete_subscription("held")


def test_progress_is_shown_by_partition(page: Page, node: Served) -> None:
    with quiver.Client(node.url) as client:
        client.create_queue("slow", exist_ok=True)
        client.publish_many("slow", ["a", "b", "c"])
        client.ack("slow", client.receive("slow", 1, wait=5))
        page.goto(f"{node.http}/console#/queues/slow")
        cells = page.get_by_role("row", name="slow/0").get_by_role("cell")
        expect(cells).to_have_text(["slow/0", "1", "3", "2"])
        client.delete_subscription("slow")


def test_a_purge_asks_first(page: Page, node: Served) -> None:
    with quiver.Client(node.url) as client:
        client.create_queue("scratch", exist_ok=True)
        client.publish_many("scratch", ["a", "b", "c"])
        page.goto(f"{node.http}/console#/queues/scratch")
        page.get_by_role("button", name="Purge…").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert len(client.peek("scratch", 10)) == 3
        page.get_by_role("button", name="Purge…").click()
        page.get_by_role("dialog").get_by_role("button", name="Purge").click()
        expect(page.locator("#notices")).to_contain_text("3 messages were purged")
        assert client.peek("scratch", 10) == []
        client.delete_subscription("scratch")


def test_messages_are_found_by_offset_time_key_and_id(page: Page, node: Served) -> None:
    with quiver.Client(node.url) as client:
        stored = client.publish("orders", {"deep": {"list": [1, "two"]}}, key="customer-find")
    page.goto(f"{node.http}/console#/messages/orders")
    rows = page.locator(".message-row")
    rows.first.wait_for()
    assert rows.count() > 20
    look = page.get_by_role("button", name="Search")

    page.get_by_label("Show").select_option("key")
    page.get_by_label("Value").fill("customer-find")
    look.click()
    expect(rows).to_have_count(1)
    detail = page.locator(".detail")
    expect(detail).to_contain_text("list: [2]")
    detail.locator("summary", has_text="list").click()
    expect(detail.locator(".text")).to_have_text('"two"')
    expect(detail.get_by_role("row", name="audit")).to_contain_text("pending")
    expect(detail.get_by_role("link", name="audit")).to_have_attribute("href", "#/queues/audit")

    page.get_by_label("Show").select_option("id")
    page.get_by_label("Value").fill(stored.id)
    look.click()
    expect(rows).to_have_count(1)

    page.get_by_label("Show").select_option("offset")
    page.get_by_label("Value").fill(str(stored.offset))
    page.get_by_label("Partition").fill(str(stored.partition))
    look.click()
    expect(rows.first).to_contain_text("customer-find")

    page.get_by_label("Show").select_option("time")
    page.get_by_label("Value").fill("nonsense")
    look.click()
    expect(page.get_by_role("alert")).to_contain_text("not a position")


def test_the_arrow_keys_go_from_message_to_message(page: Page, node: Served) -> None:
    page.goto(f"{node.http}/console#/messages/orders")
    rows = page.locator(".message-row")
    rows.first.focus()
    page.keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_be_focused()
    expect(rows.nth(1)).to_have_attribute("aria-selected", "true")
    shown = page.locator(".detail").inner_text()
    partition, offset = rows.nth(1).locator("td").nth(1).inner_text().split("/")
    assert f"partition {partition}, offset {offset}" in shown


def test_a_payload_that_is_html_is_shown_as_text(page: Page, node: Served) -> None:
    page.goto(f"{node.http}/console#/messages/?queue=emails")
    row = page.locator(".message-row", has_text="onerror")
    row.click()
    expect(page.locator(".detail pre")).to_have_text(HOSTILE)
    expect(page.locator(".detail .facts", has_text="x-html")).to_contain_text(HOSTILE)
    page.goto(f"{node.http}/console#/dead/payments")
    expect(page.locator(".groups")).to_contain_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.owned") is None
    assert page.title() != "owned"


def test_the_policy_lets_nothing_run_that_is_not_the_console(
    browser: Browser, node: Served
) -> None:
    page = browser.new_page()
    page.goto(f"{node.http}/console")
    is_blocked = page.evaluate(
        """() => {
            const made = document.createElement("script");
            made.textContent = "window.inline = 1";
            const blocked = new Promise((resolve) => {
                addEventListener("securitypolicyviolation", () => resolve(true), { once: true });
            });
            document.body.append(made);
            return blocked.then((it) => it && window.inline === undefined);
        }"""
    )
    page.close()
    assert is_blocked is True


def test_dead_letters_are_counted_before_they_are_sent_back(page: Page, node: Served) -> None:
    with quiver.Client(node.url) as client:
        fail(client, "refunds", [DECLINED, DECLINED, "no such account"])
        page.goto(f"{node.http}/console#/dead/refunds")
        groups = page.locator(".groups tbody tr")
        expect(groups).to_have_count(2)
        group = groups.filter(has_text=DECLINED)
        expect(group.locator("td").first).to_have_text("2")
        redrive = group.get_by_role("button", name="Redrive…")
        expect(redrive).to_be_disabled()
        group.get_by_role("button", name="Dry run").click()
        expect(page.locator("main")).to_contain_text("would send 2 messages back")
        assert client.peek("refunds", 10) == []
        redrive.click()
        page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
        expect(page.locator("#notices")).to_contain_text("2 messages were sent back")
        expect(groups).to_have_count(1)
        assert len(client.peek("refunds", 10)) == 2
        for name in ("refunds", "refunds.dlq"):
            client.delete_subscription(name)


def test_a_test_message_is_published_and_found(page: Page, node: Served) -> None:
    page.goto(f"{node.http}/console#/publish/orders")
    page.get_by_label("Message").fill("{not json")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
    page.get_by_label("Message").fill('{"from": "the console"}')
    page.get_by_label("Key").fill("console")
    page.get_by_label("Headers").fill("a=1, b=2")
    page.get_by_role("button", name="Publish").click()
    page.get_by_role("link", name="Show the topic's messages").click()
    expect(page.locator(".message-row", has_text="the console").first).to_be_visible()


def test_alerts_and_nodes_open(page: Page) -> None:
    go(page, "Alerts")
    expect(page.get_by_role("heading", name="Firing")).to_be_visible()
    go(page, "Nodes")
    row = page.get_by_role("row", name="node-1")
    expect(row).to_contain_text("alive")
    expect(row).to_contain_text("full, controller")
    expect(page.get_by_text("This page is served by node-1.")).to_be_visible()
    expect(page.locator("canvas")).to_have_count(2)


def test_nodes_of_different_versions_are_told(page: Page) -> None:
    def mixed(route: Route) -> None:
        answer = route.fetch()
        cluster = answer.json()
        cluster["nodes"].append({**cluster["nodes"][0], "id": "node-2", "version": "9.0.0"})
        route.fulfill(response=answer, json=cluster)

    page.route("**/cluster", mixed)
    go(page, "Nodes")
    expect(page.get_by_text("The nodes have different versions: ")).to_contain_text("9.0.0")
    page.unroute("**/cluster")


def test_dark_and_light_are_switched_and_remembered(page: Page) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate(back)
    assert dark != light
    page.reload()
    assert page.evaluate(back) == dark
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(back) == light


def test_on_a_phone_nothing_is_wider_than_the_page(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 780})
    for name in ("Overview", "Topics", "Queues", "Messages", "Dead letters", "Publish", "Nodes"):
        go(page, name)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name


def test_the_keyboard_reaches_the_content(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
