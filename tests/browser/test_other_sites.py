"""Pages of other sites in a real browser: they reach nothing of a node without authentication.

One page has another origin. One has a name that was rebound to the node's address, so that to the browser
it is a page of the node.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import quiver
from tests.browser.chromium import WITHOUT, chromium, is_left_out
from tests.serving import Served, served

ATTACK = """async ([node, socket]) => {
  const tried = [];
  const attempt = (what) => tried.push(Promise.resolve().then(what).then(
    (value) => value, (error) => `failed: ${error}`));
  const settled = (target) => new Promise((resolve) => {
    target.onload = target.onopen = () => resolve("opened");
    target.onerror = target.onclose = () => resolve("failed");
  });
  const status = async (reply) => reply.type === "opaque" ? "opaque" : reply.status;
  for (let n = 0; n < 6; n++) {
    attempt(() => fetch(`${node}/queues/jobs/messages?visibility=0`, {mode: "no-cors"}).then(status));
    const image = new Image();
    image.src = `${node}/queues/once/messages?n=${n}`.replace(/[?]n=.*/, `?batch_size=${n + 1}`);
    attempt(() => settled(image));
  }
  const post = {method: "POST", mode: "no-cors", body: '{"message": "forged"}'};
  attempt(() => fetch(`${node}/queues/jobs/messages`, post).then(status));
  attempt(() => fetch(`${node}/queues/jobs/receive`, {method: "POST", mode: "no-cors"}).then(status));
  attempt(() => fetch(`${node}/queues/jobs/messages`).then(status));
  attempt(() => fetch(`${node}/queues/jobs`, {method: "DELETE"}).then(status));
  attempt(() => settled(new WebSocket(`${socket}/queues/jobs/stream`)));
  attempt(() => settled(new WebSocket(`${socket}/console/live`, ["quiver.console.v1"])));
  return (await Promise.all(tried)).map(String);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if is_left_out():
        pytest.skip(f"{WITHOUT} is set")
    with chromium("--host-resolver-rules=MAP *.test 127.0.0.1") as running:
        yield running


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, QUIVER_WEB_HOSTS="console.test") as running:
        yield running


class _Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Another site</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_site() -> Iterator[int]:
    """The port of a server that has nothing to do with the node."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Blank) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def attack(page: Page, address: str) -> list[str]:
    told: list[str] = page.evaluate(ATTACK, [f"http://{address}", f"ws://{address}"])
    return told


@pytest.mark.parametrize("where", ["another site", "another port", "a rebound name"])
def test_a_page_of_another_site_reaches_nothing(
    where: str, browser: Browser, node: Served, other_site: int
) -> None:
    address = node.http.removeprefix("http://")
    port = address.rpartition(":")[2]
    with quiver.Client(node.url) as client:
        client.create_queue("jobs", max_deliveries=5)
        client.create_queue("once", guarantee="at-most-once")
        for queue in ("jobs", "once"):
            client.publish(queue, {"untouched": True})
        page = browser.new_page()
        try:
            if where == "a rebound name":
                address = f"rebound.test:{port}"
                page.goto(f"http://{address}/docs")
            elif where == "another site":
                page.goto(f"http://evil.test:{other_site}/")
            else:
                page.goto(f"http://127.0.0.1:{other_site}/")
            told = attack(page, address)
        finally:
            page.close()
        assert not {"opened", "200", "201", "204"} & set(told), told
        for queue in ("jobs", "once"):
            [message] = client.peek(queue, 10)
            assert (message.deliveries, message.state) == (0, "ready"), queue
        assert not client.peek("jobs.dlq", 10)


def test_the_console_works_under_a_name_that_is_listed(browser: Browser, node: Served) -> None:
    port = node.http.rpartition(":")[2]
    page = browser.new_page()
    try:
        page.goto(f"http://console.test:{port}/console")
        expect(page.get_by_text("live")).to_be_visible()
    finally:
        page.close()
