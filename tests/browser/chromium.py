"""The system's own Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
WITHOUT = "QUIVER_WITHOUT_CHROMIUM"
"""Set it to 1 where Chromium truly cannot be had: the browser's tests are then left out."""


def is_left_out() -> bool:
    return os.environ.get(WITHOUT) == "1"


def executable() -> str:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    assert found is not None, (
        "there is no Chromium on the PATH: `make browser-tools` installs it as root on Debian; "
        f"set {WITHOUT}=1 where it cannot be had"
    )
    return found


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(),
            # As root, as in a container, Chromium has no sandbox of its own.
            args=[*(["--no-sandbox"] if os.geteuid() == 0 else []), *flags],
        )
        try:
            yield browser
        finally:
            browser.close()
