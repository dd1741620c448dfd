"""One node with traffic and one browser for all tests of the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

import quiver
from tests.browser.chromium import WITHOUT, chromium, is_left_out
from tests.browser.scene import set_up, traffic
from tests.serving import Served, served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Gone at the end of a module: while it runs, Playwright's event loop is the process's own."""
    if is_left_out():
        pytest.skip(f"{WITHOUT} is set")
    expect.set_options(timeout=20_000)  # a busy machine needs longer than the usual 5 s
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Messages flow through it all the while."""
    with served(tmp_path_factory.mktemp("console")) as running:
        with quiver.Client(running.url) as client:
            set_up(client)
        with traffic(running.url):
            yield running


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One for all pages, so that files are fetched once."""
    shared = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    shared.set_default_timeout(10_000)
    yield shared
    shared.close()


@pytest.fixture
def page(context: BrowserContext, node: Served) -> Iterator[Page]:
    """The console, open; whatever goes wrong in its scripts fails the test."""
    mistakes: list[str] = []
    opened = context.new_page()
    opened.on("pageerror", lambda error: mistakes.append(str(error)))
    opened.on("console", lambda told: mistakes.append(told.text) if _is_mistake(told) else None)
    opened.goto(f"{node.http}/console")
    opened.get_by_text("live").wait_for()
    yield opened
    opened.close()
    assert mistakes == []


def _is_mistake(told: ConsoleMessage) -> bool:
    """A request that the node refused is none: pages tell it."""
    return told.type == "error" and "Failed to load resource" not in told.text
