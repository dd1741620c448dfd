"""The package as people install it: built, installed into a bare environment, and used there."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from pathlib import Path

import pytest

from tests.serving import environment

pytestmark = [pytest.mark.process, pytest.mark.long]

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 300.0


def run(*command: str | Path, cwd: Path, seconds_max: float = SECONDS_MAX) -> str:
    """What a command printed, once it has ended well."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution; the wheel is built from the latter."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def bare(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and what it asks for, and no more."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    wheel = next(built.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "--quiet"]
    install = ["install", "--disable-pip-version-check", "--no-compile"]
    run(*pip, *install, "--constraint", ROOT / "constraints.txt", wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_has_the_product_its_licence_and_no_tests(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/quiver").rglob("*.py")}
    assert modules <= set(names)
    assert {"quiver/py.typed", "quiver/console/static/index.html"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"quiver", "quivermq"}


def test_the_source_distribution_has_the_documents(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "docs/howto/queues.md"} <= names


def test_a_bare_installation_serves_publishes_consumes_and_stops(
    bare: Path, tmp_path: Path
) -> None:
    ready = tmp_path / "ready.json"
    addresses = ("--native", "127.0.0.1:0", "--http", "127.0.0.1:0")
    node = subprocess.Popen(
        [bare / "quiver", "serve", "--data", "data", *addresses, "--ready-file", ready],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while not ready.exists():
            assert node.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert run(bare / "python", "-c", _USE, ready, cwd=tmp_path).split() == ["one", "two"]
        node.terminate()
        assert node.wait(SECONDS_MAX) == 0
    finally:
        node.kill()
        node.wait()


def test_what_needs_an_extra_names_it(bare: Path, tmp_path: Path) -> None:
    told = run(bare / "python", "-c", _WITHOUT_EXTRAS, cwd=tmp_path).splitlines()
    assert len(told) == 3
    for line, extra in zip(told, ["spark", "redis", "postgres"], strict=True):
        assert f"pip install 'quivermq[{extra}]'" in line


_USE = """
import json, pathlib, sys
import quiver

ready = json.loads(pathlib.Path(sys.argv[1]).read_text())
with quiver.Client("quiver://" + ready["native"]) as q:
    q.create_queue("jobs")
    q.publish_many("jobs", ["one", "two"])
    for message in q.consume("jobs"):
        print(message.text())
        message.ack()
        if message.text() == "two":
            break
"""

_WITHOUT_EXTRAS = """
import importlib
import quiver

for call, name in [
    (importlib.import_module, "quiver.spark"),
    (quiver.idempotent, "redis://127.0.0.1/0"),
    (quiver.idempotent, "postgresql://127.0.0.1/x"),
]:
    try:
        call(name)
    except (ImportError, quiver.QuiverError) as error:
        print(error)
"""
