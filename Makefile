# Every target sets itself up in .venv the first time and re-uses it afterwards.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
# Which Python makes the virtual environment; 3.11 or newer. Left empty, the first that fits is taken.
PYTHON ?=
# Further arguments for pytest, for example: make test ARGS="-k recovery -x"
ARGS ?=

# A process that may not keep compiled modules compiles all it imports again, and pytest each of its workers.
unexport PYTHONDONTWRITEBYTECODE

PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
PYTEST := $(VENV)/bin/python -m pytest
# On all processors, unless told otherwise: make test WORKERS=0
WORKERS ?= auto
PARALLEL := --numprocesses=$(WORKERS) --dist=worksteal
# Groups (Spark, a cluster) run on one worker each, so that one JVM serves all of a group. Slow tests wait for other
# processes: one more of them runs than there are processors.
BY_GROUP = --numprocesses=$(if $(filter auto,$(WORKERS)),$(shell expr $$(getconf _NPROCESSORS_ONLN) + 1),$(WORKERS)) --dist=loadgroup
# Quick tests wait for threads and disks a third of the time, so two more of them run than there are processors.
QUICK_WORKERS = $(if $(filter auto,$(WORKERS)),$(shell expr $$(getconf _NPROCESSORS_ONLN) + 2),$(WORKERS))
QUICK_PARALLEL = --numprocesses=$(QUICK_WORKERS) --dist=worksteal
LOCAL_LOG := -m "not slow and not spark and not s3" tests/walstore --ignore=tests/walstore/cli --ignore=tests/walstore/spark
# Where quick tests have their files: make test MEMORY=/dev/shm keeps them in memory, which saves a tenth of the time.
MEMORY ?=
IN_MEMORY = $(if $(MEMORY),PYTEST_DEBUG_TEMPROOT=$(MEMORY))
# Else three runs would stay there.
QUICK_OPTIONS = $(if $(MEMORY),-o tmp_path_retention_policy=failed)
# What pytest ends with if it has nothing to run.
NO_TESTS := 5
# Which PySparks make test-spark-versions runs, beside the newest, which the other targets have.
VERSIONS ?= 4.0.5 4.1.4 4.2.1
SPARK_TESTS := tests/walstore/spark tests/examples tests/scenarios/test_70_spark_exactly_once.py \
	tests/scenarios/test_71_spark_sink_exactly_once.py tests/scenarios/test_72_sidecar.py
RUN := $(VENV)/.ready-to-run
DEV := $(VENV)/.ready-to-develop
DOCS := $(VENV)/.ready-to-document
BENCH := $(VENV)/.ready-to-compare

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(DEV) ## Set up the environment for development

.PHONY: demo
demo: $(if $(wildcard $(DEV)),$(DEV),$(RUN)) ## Run the whole path once on real data of this machine: append, kill, recover, ship, read, Spark
	@$(VENV)/bin/walstore demo $(ARGS)

# etcd is the only part that needs root; without it, and without root, it says so and is skipped.
.PHONY: demo-cluster
demo-cluster: $(DEV) ## Run three machines and three etcd nodes here, with kills, and check that nothing was lost: ARGS="--rounds 5"
	@$(VENV)/bin/python -m tests.cluster_demo $(ARGS) \
		|| { status=$$?; [ $$status -eq 77 ] && echo "demo-cluster: skipped, see above"; } || exit $$status

.PHONY: test
test: $(DEV) ## Run the quick tests
	$(IN_MEMORY) $(PYTEST) -m "not slow" $(QUICK_PARALLEL) $(QUICK_OPTIONS) $(ARGS)

.PHONY: test-slow
test-slow: $(DEV) ## Run the tests that take longer than about a second each
	@$(VENV)/bin/python -m tests.spark_classes >/dev/null 2>&1 || true
	$(PYTEST) -m slow $(BY_GROUP) $(ARGS)

# SINCE names a commit. Without it: what is not committed yet, or else the last commit.
SINCE ?=
SELECTION = $(VENV)/bin/python -m tests.ci.selection $(if $(SINCE),--since $(SINCE),--last)
.PHONY: test-changed
test-changed: $(DEV) ## Run the tests that a change can break, quick ones first, then the nearest slow ones: SINCE=main
	@quick=$$($(SELECTION)) && { [ -z "$$quick" ] || \
		$(IN_MEMORY) $(PYTEST) -m "not slow" $(QUICK_PARALLEL) $(QUICK_OPTIONS) $(ARGS) $$quick || [ $$? -eq $(NO_TESTS) ]; }
	@slow=$$($(SELECTION) --slow) && { [ -z "$$slow" ] || \
		$(PYTEST) -m slow $(PARALLEL) $(ARGS) $$slow || [ $$? -eq $(NO_TESTS) ]; }

.PHONY: test-debug
test-debug: $(DEV) ## Run the quick tests of the local log with asyncio's debug mode
	PYTHONASYNCIODEBUG=1 $(PYTEST) $(QUICK_PARALLEL) $(LOCAL_LOG) $(ARGS)

# The packages are the only part that needs root; without them, and without root, it says so and is skipped.
.PHONY: test-s3
test-s3: $(DEV) ## Run the store and log tests against a real S3 server, Ceph's; as root it is installed if missing
	@$(VENV)/bin/python tests/s3/rgw.py run $(PYTEST) $(PARALLEL) tests/s3 tests/scenarios/test_64_cloud_s3.py tests/scenarios/test_68_collections_s3.py \
		tests/uploader/stores/test_s3.py tests/uploader/stores/test_conformance.py tests/cluster -m s3 $(ARGS) \
		|| { status=$$?; [ $$status -eq 77 ] && echo "test-s3: skipped, see above"; } || exit $$status

# Azurite is a package of npm; without Node it says so and is skipped.
.PHONY: test-azure
test-azure: $(DEV) ## Run the store tests at az:// against Azurite, Microsoft's emulator; needs Node 20
	@$(VENV)/bin/python -m tests.azure $(PYTEST) $(PARALLEL) tests/azure $(ARGS) \
		|| { status=$$?; [ $$status -eq 77 ] && echo "test-azure: skipped, see above"; } || exit $$status

# Chroma's repository is not here, and is not needed otherwise: a checkout, or a git directory, is named.
CHROMA ?=
.PHONY: test-wal3
test-wal3: $(DEV) ## Build Chroma's own wal3 with cargo and run the tests of both at one log: CHROMA=path/to/chroma
	@$(VENV)/bin/python tests/wal3/build.py run "$(CHROMA)" $(PYTEST) $(PARALLEL) tests/wal3 -m wal3 $(ARGS) \
		|| { status=$$?; [ $$status -eq 77 ] && echo "test-wal3: skipped, see above"; } || exit $$status

# Its suite is a package of npm; without Node it says so and is skipped.
.PHONY: test-durable-streams
test-durable-streams: $(DEV) ## Run the conformance suite of the Durable Streams protocol against walstore serve --http; needs Node 20
	@$(VENV)/bin/python -m tests.durable_streams $(ARGS) \
		|| { status=$$?; [ $$status -eq 77 ] && echo "test-durable-streams: skipped, see above"; } || exit $$status

# The browser is the only part that needs root; without it, and without root, it says so and is skipped.
.PHONY: test-page
test-page: $(DEV) ## Look at the page of walstore serve --http with a real Chromium; pictures are kept in .screenshots
	@$(VENV)/bin/python -m tests.browser && $(PYTEST) -m page $(ARGS) \
		|| { status=$$?; [ $$status -eq 77 ] && echo "test-page: skipped, see above"; } || exit $$status

# strace is the only part that needs root; without it, and without root, it says so and is skipped.
.PHONY: crash
crash: $(DEV) ## Record a log's system calls, make the states a power failure may leave, and try 20 000: ARGS="--states 100000 --seed 7"
	@$(VENV)/bin/python -m tests.crash run $(ARGS) \
		|| { status=$$?; [ $$status -eq 77 ] && echo "crash: skipped, see above"; } || exit $$status

.PHONY: storm
storm: $(DEV) ## Kill writers at random moments, 1 500 times, and check what they acknowledged: ARGS="--kills 10000 --seed 7"
	@$(VENV)/bin/python -m tests.storm $(ARGS)

.PHONY: test-cluster
test-cluster: $(DEV) ## Run the tests on a Spark cluster: a master and two workers, started for them; needs Java 17
	$(PYTEST) --numprocesses=0 tests/cluster $(ARGS)

# PySpark 4.0 leaves sockets unclosed. One process, since each starts a JVM. make -k goes on after a version that fails.
.PHONY: test-spark-versions
test-spark-versions: $(addprefix test-spark-,$(VERSIONS)) ## Run the Spark tests on older PySparks, each in its own environment: VERSIONS="4.0.5 4.2.1"

test-spark-%: .venv-spark-%/.ready
	.venv-spark-$*/bin/python -m pytest --numprocesses=0 -W "ignore:unclosed <socket:ResourceWarning" \
		-p no:cacheprovider $(SPARK_TESTS) $(ARGS)

.PRECIOUS: .venv-spark-%/.ready
.venv-spark-%/.ready: pyproject.toml | $(VENV)/bin/python
	@echo "installing walstore and PySpark $* into .venv-spark-$*"
	@$(VENV)/bin/python -m venv .venv-spark-$*
	@.venv-spark-$*/bin/python -m pip --disable-pip-version-check --quiet install --no-compile \
		--editable '.[dev]' pyspark==$*
	@touch $@

# A Python that is not here is skipped with a word, and so are the tests of an extra that has no wheels for it.
PYTHONS ?= python3.12 python3.13 python3.14 python3.14t
EXTRAS := cli cloud metrics obstore otel serve zstd
VERSION_OF := import ensurepip, sys; print("{}.{}".format(*sys.version_info) + sys.abiflags)
.PHONY: test-python
test-python: ## Run the quick tests of the local log on other Pythons, each in its own environment: PYTHON=python3.14, or PYTHONS="python3.13 python3.14t"
	@status=0; for python in $(or $(PYTHON),$(PYTHONS)); do \
		if version=$$("$$python" -c '$(VERSION_OF)' 2>/dev/null); then \
			$(MAKE) --no-print-directory "test-python-$$version" PYTHON="$$python" || status=1; \
		else \
			echo "$$python is not here, or has no ensurepip (Debian: python3-venv): install it, as with pyenv," \
				"or name another one: make test-python PYTHON=/path/to/python"; \
			echo "test-python: $$python skipped, see above"; \
		fi; \
	done; exit $$status

test-python-%: .venv-python-%/.ready
	.venv-python-$*/bin/python -m pytest $(QUICK_PARALLEL) -p no:cacheprovider --skip-missing-extras $(LOCAL_LOG) $(ARGS)

# All extras at once, or else those that there are.
.PRECIOUS: .venv-python-%/.ready
.venv-python-%/.ready: pyproject.toml
	@echo "installing walstore and its test tools into .venv-python-$*"
	@"$(or $(PYTHON),python$*)" -m venv .venv-python-$*
	@install() { .venv-python-$*/bin/python -m pip --disable-pip-version-check --quiet install --no-compile "$$@"; }; \
	install --editable '.[test]' || exit; \
	all='$(EXTRAS)'; install --only-binary :all: --editable ".[$${all// /,}]" 2>/dev/null || for extra in $$all; do \
		install --only-binary :all: --editable ".[$$extra]" 2>/dev/null \
			|| echo "the extra $$extra has no wheels for Python $*: its tests are skipped"; \
	done
	@touch $@

# Several minutes on two processors; never less than 2000 before a release. Half of the cloud's seeds for each layout.
SEEDS ?= 6000
CLOUD_SEEDS ?= 800
COLLECTION_SEEDS ?= 800
GROUP_SEEDS ?= 2000
REPLICA_SEEDS ?= 2000
.PHONY: sim
sim: $(DEV) ## Run local and stored logs on virtual time, with faults and crashes, under many seeds: SEEDS=6000 CLOUD_SEEDS=800 COLLECTION_SEEDS=800 GROUP_SEEDS=2000 REPLICA_SEEDS=2000
	@status=0; run() { echo "tests.sim $$*"; $(VENV)/bin/python -m tests.sim "$$@" $(ARGS) || status=1; }; \
	run --seeds $(SEEDS); \
	run --cloud --seeds $(CLOUD_SEEDS); \
	run --collections --seeds $(COLLECTION_SEEDS); \
	run --groups --seeds $(GROUP_SEEDS); \
	run --replicas --seeds $(REPLICA_SEEDS); \
	exit $$status

# At full effort a test may take longer than after which all threads' stacks are printed, which is done while
# they run, and can end the interpreter.
.PHONY: test-all
test-all: $(DEV) ## Run all tests at full effort; WALSTORE_EFFORT=0.1 for as much as CI does
	@$(VENV)/bin/python -m tests.spark_classes >/dev/null 2>&1 || true
	WALSTORE_EFFORT=$${WALSTORE_EFFORT:-1} $(PYTEST) -o faulthandler_timeout=3600 $(BY_GROUP) $(ARGS)

# Many hours on two processors. What each part prints is kept in .nightly.
SEED ?= $(shell date +%Y%m%d)
PARTS ?=
.PHONY: nightly
nightly: $(DEV) ## Run everything at full effort, with seeds made from the date: SEED=7 PARTS="crash storm" CHROMA=path/to/chroma
	@WALSTORE_SEED="$(SEED)" CHROMA="$(CHROMA)" $(VENV)/bin/python -m tests.nightly $(PARTS)

# Files of inputs that are answered wrongly are kept in .fuzz, and the command that opens them again is printed.
.PHONY: fuzz
fuzz: $(DEV) ## Open 5 000 damaged and forged logs and 1 500 buckets in every way; more: make fuzz ARGS="--first 5001 --inputs 100000"
	PYTHONPATH=. $(VENV)/bin/python -m tests.fuzz $(ARGS)

# A frame that is answered wrongly is named by the seed of its connection.
.PHONY: fuzz-frames
fuzz-frames: $(DEV) ## Send a million frames, right and wrong ones, to a server: ARGS="--frames 10000000 --first 100000"
	PYTHONPATH=. $(VENV)/bin/python -m tests.fuzz.frames $(ARGS)

.PHONY: mutants
mutants: $(DEV) ## Put fifty bugs into a copy of the code, one at a time, and see which the tests catch: ARGS="tail cas"
	@$(VENV)/bin/python -m tests.mutants $(ARGS)

# The record is what the next runs are compared with, and what they plan their time by.
.PHONY: timing
timing: ## Keep the times of the last .ci/run in tests/timing.json
	cp .ci-run/timing.json tests/timing.json

.PHONY: check
check: $(DEV) ## Check style, formatting, types, who imports whom, and that no test measures time; count what docs/decisions.md names
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/python -m tools.fragile_tests
	$(VENV)/bin/python -m tools.house

.PHONY: format
format: $(DEV) ## Format the code and fix what can be fixed by itself
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

# Zensical aborts on a broken link or anchor, and has a cache of its own.
.PHONY: docs
docs: $(DOCS) ## Generate the reference and build the documentation into site/
	$(VENV)/bin/python -m tools.reference
	$(VENV)/bin/zensical build --strict --clean

.PHONY: bench
bench: $(DEV) ## Measure, each figure beside a raw baseline of the same run
	$(PYTEST) bench --benchmark-only --timeout=600 $(ARGS)

# The reference server of Durable Streams is a package of npm; without npm, or without the package, it is skipped.
WALSTORE_BENCH_DURABLE_STREAMS ?= $(CURDIR)/.durable-streams-server
.PHONY: bench-report
bench-report: $(BENCH) ## Compare with SQLite, LMDB, RocksDB, Redis, JetStream, Durable Streams, Spark, Delta and the disk alone; pages and plots: ARGS="--directory /mnt/disk"
	@[ -d "$(WALSTORE_BENCH_DURABLE_STREAMS)/node_modules/@durable-streams/server" ] || ! command -v npm >/dev/null \
		|| npm install --silent --no-audit --no-fund --prefix "$(WALSTORE_BENCH_DURABLE_STREAMS)" @durable-streams/server || true
	WALSTORE_BENCH_DURABLE_STREAMS="$(WALSTORE_BENCH_DURABLE_STREAMS)" $(VENV)/bin/python -m bench.report $(ARGS)

.PHONY: clean
clean: ## Remove the environment, caches and build products
	rm -rf $(VENV) .venv-python-* .venv-spark-* .wal3 build dist site .cache *.egg-info .benchmarks .ci-run .fuzz .hypothesis \
		.import_linter_cache .mypy_cache .nightly .pytest_cache .ruff_cache spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@for python in "$(PYTHON)" python3.11 python3 python3.12 python3.13; do \
		[ -n "$$python" ] || continue; \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "making $(VENV) with $$("$$python" --version)"; \
			exec "$$python" -m venv $(VENV); \
		fi; \
		[ -z "$(PYTHON)" ] || break; \
	done; \
	echo "walstore needs Python 3.11 or newer; install it, or name it: make PYTHON=/path/to/python3" >&2; \
	exit 1

$(RUN): pyproject.toml | $(VENV)/bin/python
	@echo "installing walstore with its extras into $(VENV)"
	@$(PIP) install --no-compile --editable '.[all]'
	@touch $@

$(DEV): pyproject.toml | $(VENV)/bin/python
	@echo "installing walstore and its development tools into $(VENV)"
	@$(PIP) install --no-compile --editable '.[dev]'
	@touch $@ $(RUN)

$(BENCH): pyproject.toml | $(VENV)/bin/python
	@echo "installing walstore and what it is compared with into $(VENV)"
	@$(PIP) install --no-compile --editable '.[all,bench]'
	@touch $@ $(RUN)

$(DOCS): pyproject.toml | $(VENV)/bin/python
	@echo "installing walstore and the documentation's tools into $(VENV)"
	@$(PIP) install --no-compile --editable '.[all,docs]'
	@touch $@ $(RUN)
