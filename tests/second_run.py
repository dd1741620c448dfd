"""All tests, and a second run, alone, for the few that failed: ``python -m tests.second_run``.

Tests with real processes, disks, sockets and browsers share two busy cores with everything else.
One of some thousands may lose a race that says nothing about Quiver. It runs once more, in a run of
its own, and is named at the end even if it passes: a test that is named twice is to be mended.
Whatever is deterministic has no second run, nor have many failures at once.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

FAILURES_MAX = 3
FOLDERS = ("acceptance", "browser", "chaos", "integration", "spark")
"""Where tests meet real processes, disks, sockets and browsers. Elsewhere a mark says so."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """End the run where a failure is not one to be looked at twice."""
    folders = [session.config.rootpath / "tests" / folder for folder in FOLDERS]
    failed = session.items
    final = [
        item.nodeid
        for item in failed
        if not any(map(item.path.is_relative_to, folders))
        and not item.get_closest_marker("process")
    ]
    if final:
        pytest.exit(f"no second run for what is deterministic: {', '.join(final)}", returncode=1)
    if len(failed) > FAILURES_MAX:
        refusal = f"no second run for {len(failed)} failures, {FAILURES_MAX} at most"
        pytest.exit(refusal, returncode=1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = [report.nodeid for report in terminalreporter.getreports("passed")]
    if passed:
        terminalreporter.section("unsteady: failed beside others, passed alone")
        for one in passed:
            terminalreporter.line(one)


def main(arguments: list[str]) -> int:
    pytest_command = [sys.executable, "-m", "pytest", *arguments]
    code = subprocess.run(pytest_command, check=False).returncode
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    alone = ["-p", "tests.second_run", "-n", "0", "--last-failed", "--last-failed-no-failures=none"]
    return subprocess.run([*pytest_command, *alone], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
