"""Where the results of full runs are kept in the tree, and the pages that are made from them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.page import results_page, with_figures
from benchmarks.harness.result import load_all

_ROOT = Path(__file__).parents[2]
RESULTS = _ROOT / "benchmarks" / "results"
README = _ROOT / "README.md"


def kept_page() -> str:
    """All rows that are kept."""
    return results_page(load_all(str(RESULTS)))


def readme() -> str:
    """The README with the figures that are kept."""
    return with_figures(README.read_text(encoding="utf-8"), load_all(str(RESULTS)))


PAGES = {RESULTS / "README.md": kept_page, README: readme}
