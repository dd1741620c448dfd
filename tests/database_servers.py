"""Real Postgres and Redis for tests: the system's programs, each on a free port of this machine.

Postgres refuses to run as root. Then it runs as another user, in a folder that is that user's own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quiver.client.handled import PostgresStore, RedisStore
from quiver.errors import InvalidSetting
from tests.ports import free_port

_START_SECONDS_MAX = 60.0
_STOP_SECONDS_MAX = 60.0


def _program(name: str) -> str:
    beside = [str(one) for one in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")]
    found = shutil.which(name) or next(iter(sorted(beside)), None)
    assert found, f"the tests need {name}: make database-tools installs it as root"
    return found


def _other_user() -> str | None:
    """Who runs a server that refuses root; ``None``: whoever runs the tests."""
    if os.getuid() != 0:
        return None
    users = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in users else "nobody"


@contextmanager
def _running(arguments: Sequence[str], folder: Path, user: str | None) -> Iterator[None]:
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            arguments, cwd=folder, user=user, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS_MAX)
        finally:
            process.kill()


def _until_it_answers(url: str, store: type[PostgresStore | RedisStore]) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while True:
        try:
            store(url).close()
            return
        except InvalidSetting:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a database without a password."""
    user = _other_user()
    with tempfile.TemporaryDirectory(prefix="quiver-postgres-") as name:
        folder, port = Path(name), free_port()
        if user is not None:
            shutil.chown(folder, user)
        data = str(folder / "data")
        flags = ("--auth=trust", "--username=quiver", "--no-sync", "--encoding=UTF8", "--locale=C")
        made = [_program("initdb"), "-D", data, *flags]
        subprocess.run(made, cwd=folder, user=user, check=True, capture_output=True, timeout=120)
        server = [_program("postgres"), "-D", data, "-p", str(port), "-h", "127.0.0.1"]
        with _running([*server, "-k", "", "-c", "fsync=off"], folder, user):
            url = f"postgresql://quiver@127.0.0.1:{port}/postgres"
            _until_it_answers(url, PostgresStore)
            yield url


@contextmanager
def redis() -> Iterator[str]:
    """The URL of a server that keeps everything in memory."""
    with tempfile.TemporaryDirectory(prefix="quiver-redis-") as name:
        port = free_port()
        server = [_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
        with _running([*server, "--save", "", "--dir", name], Path(name), None):
            url = f"redis://127.0.0.1:{port}/0"
            _until_it_answers(url, RedisStore)
            yield url
