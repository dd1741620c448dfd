"""The console's files, as a browser asks for them: ours, and the charts of an installed package."""

from __future__ import annotations

import importlib.util
from importlib import resources
from pathlib import Path

import msgspec

from quiver.errors import PathNotFound

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CHARTS = "chart.js"
_CHARTS_IN = "django/static/chartkick/Chart.bundle.js"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Only the console's own files run, and they reach nothing but this node."""


class File(msgspec.Struct, frozen=True):
    content: bytes
    media_type: str


class Pages:
    """Every file, read once."""

    def __init__(self) -> None:
        folder = resources.files(__package__).joinpath("static")
        self._files = {
            one.name: File(one.read_bytes(), _TYPES[Path(one.name).suffix])
            for one in folder.iterdir()
        }
        self._files[_CHARTS] = File(_charts().read_bytes(), _TYPES[".js"])

    def get(self, name: str) -> File:
        found = self._files.get(name)
        if found is None:
            raise PathNotFound
        return found


def _charts() -> Path:
    """Chart.js for browsers, out of the package ``chartkick``, which is looked up and not run."""
    spec = importlib.util.find_spec("chartkick")
    assert spec is not None, "it is a dependency"
    assert spec.submodule_search_locations is not None, "it is a package"
    return Path(next(iter(spec.submodule_search_locations)), _CHARTS_IN)
