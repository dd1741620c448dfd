"""Signing in to the console of a node that asks for tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import quiver
from tests.serving import Served, served


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, QUIVER_SECURITY_AUTHENTICATION="true") as node:
        yield node


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_only_a_known_token_sees_anything_and_only_what_it_may(
    browser: Browser, guarded: Served
) -> None:
    admin = (guarded.data / "admin.token").read_text().strip()
    with quiver.Client(guarded.url, token=admin) as client:
        client.create_queue("visible")
        client.create_queue("secret")
        _, token = client.create_token("viewer", ["consume:visible"])
    assert token is not None
    page = browser.new_page()
    try:
        page.goto(f"{guarded.http}/console")
        sign_in(page, "qv_wrong")
        expect(page.get_by_role("alert")).to_contain_text("wrong, expired or revoked")
        sign_in(page, token)
        page.get_by_text("live").wait_for()
        page.get_by_role("navigation").get_by_role("link", name="Queues").click()
        expect(page.get_by_role("link", name="visible")).to_be_visible()
        assert "secret" not in page.locator("main").inner_text()
        assert token not in page.url
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.reload()
        expect(page.get_by_label("Token")).to_be_visible()
    finally:
        page.close()
