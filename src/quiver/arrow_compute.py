"""Arrow's compute functions, loaded with the first that is used.

``from quiver import arrow_compute as pc`` stands for ``import pyarrow.compute as pc``, which takes 25 ms and
9 MB: too much for a node or a client that has no batch to look into yet.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    value = globals()[name] = getattr(import_module("pyarrow.compute"), name)
    return value
