"""How much disk an installation takes: the package and all that it depends on, without extras."""

from __future__ import annotations

import os
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.harness.bench import Bench
from benchmarks.harness.row import Row, at_most

_PACKAGE = "quivermq"
_SOURCE = Path(__file__).parents[2] / "src" / "quiver"


def weigh_the_installation(_bench: Bench) -> list[Row]:
    sizes = {name: _bytes_of(one) for name, one in _required_by(_PACKAGE).items()}
    # Here the package itself is installed as a link to its source.
    sizes[_PACKAGE] = sum(
        path.stat().st_size
        for path in _SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    return [
        Row(
            name="installed, with what it depends on",
            value=sum(sizes.values()) / 1e6,
            unit="MB",
            target=at_most(300),
            note=f"{len(sizes)} packages, without compiled files: "
            + ", ".join(f"{name} {sizes[name] / 1e6:.1f} MB" for name in (*largest, _PACKAGE)),
        )
    ]


def _required_by(package: str) -> dict[str, Distribution]:
    """The package, what it requires on this machine, what that requires, and so on."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(package, "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[name] = distribution(name)
        for line in found[name].requires or ():
            required = Requirement(line)
            if required.marker is None or required.marker.evaluate({"extra": extra}):
                wanted = canonicalize_name(required.name)
                waiting += [(wanted, one) for one in ("", *required.extras)]
    return found


def _bytes_of(installed: Distribution) -> int:
    """The size of its files. What Python compiled is not part of it."""
    paths = (os.fspath(installed.locate_file(path)) for path in installed.files or ())
    return sum(
        os.path.getsize(path)
        for path in paths
        if not path.endswith(".pyc") and os.path.exists(path)
    )
