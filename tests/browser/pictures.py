"""Takes pictures of the console's pages into ``docs/pictures``: ``make pictures``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import quiver
from tests.browser.chromium import chromium
from tests.browser.scene import set_up, traffic
from tests.serving import Served, served

PAGES = {
    "overview": "#/",
    "topics": "#/topics",
    "topic": "#/topics/orders",
    "queues": "#/queues",
    "queue": "#/queues/billing",
    "messages": "#/messages/orders",
    "dead-letters": "#/dead/payments",
    "publish": "#/publish/orders",
    "alerts": "#/alerts",
    "nodes": "#/nodes",
}
_MOVED_MS = 60_000
_RULE = """
[alerts.rules.audit-behind]
watch = "depth"
on = "audit"
limit = 100
"""


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        settings = Path(data, "quiver.toml")
        settings.write_text(_RULE)
        with served(Path(data), "--config", str(settings)) as node:
            take(node, folder, names or list(PAGES))


def take(node: Served, folder: Path, names: list[str]) -> None:
    with quiver.Client(node.url) as client:
        set_up(client)
    with traffic(node.url), chromium() as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(f"{node.http}/console")
        page.wait_for_timeout(_MOVED_MS)
        for name in names:
            page.evaluate("place => { location.hash = place }", PAGES[name])
            page.wait_for_timeout(1500)
            page.screenshot(path=folder / f"console-{name}.png")
        page.evaluate("location.hash = '#/queues'")
        page.get_by_role("button", name="New queue").click()
        page.get_by_text("All settings").click()
        page.wait_for_timeout(500)
        page.screenshot(path=folder / "console-new-queue.png")
        page.get_by_role("button", name="Cancel").click()
        page.goto(f"{node.http}/docs")
        page.locator("#paths details").first.wait_for()
        page.screenshot(path=folder / "docs.png")
        page.goto(f"{node.http}/console")
        page.wait_for_timeout(1500)
        page.get_by_role("button", name="Dark").click()
        page.wait_for_timeout(1500)
        page.screenshot(path=folder / "console-dark.png")
        page.set_viewport_size({"width": 390, "height": 780})
        page.wait_for_timeout(1500)
        page.screenshot(path=folder / "console-phone.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
