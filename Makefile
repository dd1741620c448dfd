# Quiver's commands. Each sets itself up first: a machine needs Python 3.11+ and make, no more.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
NODE := .venv/.node
READY := .venv/.ready
# What is compiled is kept, whatever the shell says: a node starts in half the time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup run pages demo check quick-tests test most-tests console-tests spark-tests own-jvms-tests lint bench deploy \
	bench-tools java sim chaos browser-tools database-tools chart-tools pictures clean

setup: $(READY)

# What a node needs, and no more.
$(NODE): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Quiver needs Python 3.11 or newer on the PATH."; exit 1; }
	@echo "Installing what a node needs into .venv: about half a minute, once."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

# What tests, Spark and the browser need besides.
$(READY): $(NODE) tests/spark/connect.txt
	@echo "Installing Spark and the tools of tests into .venv: about two minutes, once."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target .venv/connect -r tests/spark/connect.txt
	@touch $@

run: $(NODE)
	$(BIN)/quiver serve

# A node, a shop that keeps it busy and a Spark pipeline; it says where to look.
demo: setup java
	@$(BIN)/python examples/demo/main.py

# The inner loop: lint, types, and the tests that need no process, browser or Spark. Whoever waits, for a disk or a
# lease, leaves its core to another: hence twice as many at a time as two cores have.
check: setup
	@$(MAKE) --no-print-directory -j 2 lint quick-tests

AT_A_TIME ?= 4
WORKERS := -n $(AT_A_TIME) --dist worksteal
quick-tests: setup
	$(BIN)/pytest $(WORKERS) -m "not process and not long" \
		--ignore=tests/spark --ignore=tests/browser --ignore=tests/chaos

# Spark's tests share one session, but for those with JVMs of their own; the console's share one browser. They come
# last, two at a time: a JVM that gets no core gives up. The few that fail run once more, one by one.
TEST := $(BIN)/python -m tests.second_run
OWN_JVMS := $(addprefix tests/spark/test_,cluster.py connect.py driver_killed.py example.py stopping.py)
test:
	@$(MAKE) --no-print-directory java browser-tools database-tools & $(MAKE) --no-print-directory setup && wait
	@$(MAKE) --no-print-directory -j 2 lint most-tests
	@$(MAKE) --no-print-directory -j 2 own-jvms-tests spark-tests console-tests

most-tests: setup
	$(TEST) $(WORKERS) --ignore=tests/spark --ignore=tests/browser

console-tests: setup
	$(TEST) tests/browser -o cache_dir=.pytest_cache/console

spark-tests: setup
	$(TEST) tests/spark $(OWN_JVMS:%=--ignore=%) -o cache_dir=.pytest_cache/spark

own-jvms-tests: setup
	$(TEST) $(OWN_JVMS) -o cache_dir=.pytest_cache/own-jvms

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What was measured last is kept in benchmarks/results, with where it fell short, and shown in the README.
bench: setup bench-tools java
	$(BIN)/python -m benchmarks

# Prometheus rules and a Grafana dashboard, from the definitions of figures and alerts.
deploy: setup
	$(BIN)/python -m deploy

# Reference pages of commands, HTTP, Python, settings, figures and alerts, from the code.
pages: setup
	$(BIN)/python -m pages

# Redis, RabbitMQ and Kafka (by Maven), to compare with. Where one cannot be installed, its rows are left out.
COPY_JARS := org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies
bench-tools: setup
	@$(BIN)/python -c 'import confluent_kafka, pika, redis' 2>/dev/null || timeout 120 $(BIN)/python -m pip install \
		--quiet --disable-pip-version-check -c constraints.txt -e '.[bench]' >/dev/null 2>&1 || true
	@command -v redis-server >/dev/null && command -v rabbitmq-server >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& benchmarks/install-servers.sh redis-server rabbitmq-server >/dev/null 2>&1; } || true
	@test -d .venv/kafka || { command -v mvn >/dev/null && timeout 300 mvn -q -B -f \
		benchmarks/kafka-pom.xml $(COPY_JARS) -DoutputDirectory=$(CURDIR)/.venv/kafka \
		>/dev/null 2>&1; } || rm -rf .venv/kafka

# Java, for Spark. Where it is missing and cannot be installed, what needs it fails and says so.
java:
	@command -v java >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& echo "Installing Java for Spark: about a minute, once." \
		&& { timeout 120 apt-get update && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get \
		install -y --no-install-recommends openjdk-17-jre-headless; } >/dev/null 2>&1; } || true

# Clusters on virtual time, each from a new seed, for SIM_SECONDS, then two clusters with a mirror; seeds that
# fail are told.
SIM_SECONDS ?= 1200
SIM_MIRROR_SECONDS ?= 300
sim: setup
	$(BIN)/quiver sim --seconds $(SIM_SECONDS)
	$(BIN)/quiver sim --mirrors --seconds $(SIM_MIRROR_SECONDS)

# Real processes with everything going wrong, so many times: kills, cut links, power cuts, lost disks.
CHAOS_ROUNDS ?= 10
chaos: setup
	QUIVER_CHAOS_ROUNDS=$(CHAOS_ROUNDS) $(BIN)/pytest -n 0 tests/chaos
	QUIVER_STATES_MESSAGES=200000 QUIVER_STATES_KILLS=10 $(BIN)/pytest -n 0 tests/integration/test_truthful_states.py

# Chromium, for the console's tests. Where it is missing and cannot be installed, they fail and say so.
browser-tools:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& echo "Installing Chromium for the console's tests: about a minute, once." \
		&& { timeout 120 apt-get update && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get \
		install -y --no-install-recommends chromium; } >/dev/null 2>&1; } || true

# Postgres and Redis, for the tests of stores that machines share. Where one is missing and cannot be
# installed, they fail and say so.
database-tools:
	@{ command -v redis-server && { command -v postgres || ls /usr/lib/postgresql/*/bin/postgres; }; } \
		>/dev/null 2>&1 || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& benchmarks/install-servers.sh postgresql redis-server >/dev/null 2>&1; } || true

# Helm, for the tests of the chart, built from its Go module; Debian's Go 1.24 or newer will do. Where it
# cannot be built, these tests are skipped.
HELM := helm.sh/helm/v3/cmd/helm@v3.19.0
chart-tools: $(NODE)
	@command -v helm >/dev/null || test -x .venv/tools/helm || { { command -v go >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && benchmarks/install-servers.sh golang-go \
		>/dev/null 2>&1; }; } && GOBIN=$(CURDIR)/.venv/tools GOPATH=$(CURDIR)/.venv/go GOFLAGS=-modcacherw \
		timeout 1800 go install $(HELM); } || echo "helm cannot be built: the chart's tests are skipped"

# The console's pages, as the documentation shows them.
pictures: setup browser-tools
	$(BIN)/python -m tests.browser.pictures docs/pictures

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
