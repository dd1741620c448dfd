# Quiver's commands. Each sets itself up first: a machine needs Python 3.11+ and make, no more.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup run test lint bench bench-tools clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Quiver needs Python 3.11 or newer on the PATH."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: setup
	$(BIN)/quiver serve

test: setup lint
	$(BIN)/pytest -n 2 --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup bench-tools
	$(BIN)/python -m benchmarks

# Redis, to compare with. Where it cannot be installed, its rows are left out.
bench-tools: setup
	@$(BIN)/python -c 'import redis' 2>/dev/null || timeout 120 $(BIN)/python -m pip install \
		--quiet --disable-pip-version-check -c constraints.txt -e '.[bench]' >/dev/null 2>&1 || true
	@command -v redis-server >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& { timeout 120 apt-get update && DEBIAN_FRONTEND=noninteractive timeout 120 apt-get \
		install -y --no-install-recommends redis-server; } >/dev/null 2>&1; } || true

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
