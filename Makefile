# Every target sets itself up: on a bare machine it needs only Python 3.8 to 3.13 and a network.
# PADDLE=3 takes PaddlePaddle 3.3.1 instead of 2.6.2, in an environment of its own; so does a machine
# whose only Python is 3.13, where 2.6.2 cannot be installed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Packages are fetched while an environment is made.
MAKEFLAGS += --jobs=2

# So that another project's modules never shadow the locked ones, and that not every process compiles
# the same modules again: importing what trains takes 6 s so, and 2.4 s with Python's cache.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

PYTHONS_2 := 3.10 3.8 3.9 3.11 3.12
PYTHONS_3 := 3.12 3.11 3.10 3.9 3.13
ifndef PADDLE
PADDLE := $(shell [ -e .venv/stamp ] || .ci/python $(PYTHONS_2) >/dev/null || \
	! .ci/python 3.13 >/dev/null && echo 2 || echo 3)
endif
ifeq ($(PADDLE),3)
VENV := .venv-paddle3
else
VENV := .venv
endif
PYTHON := $(VENV)/bin/python
# Tests wait for processes more than they compute: two at once on each processor.
WORKERS := $(shell n=$$(( 2 * $$(nproc 2>/dev/null || echo 2) )); echo $$(( n < 8 ? n : 8 )))
TESTS := tests --ignore tests/benchmarks
KILLS := 50
SEED := 0
DIST := dist
SOURCES := $(wildcard setup.py fleetbert launch deploy tests docs/examples)

.PHONY: help quickstart test test-all test-slow test-part endurance lint api-page docs format bench release venv venv-clients venv-bench \
	venv-cluster venv-publish packages packages-arm lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

quickstart: venv ## Train BERT on two processes, then ask it questions
	$(PYTHON) -m paddle.distributed.launch --nproc_per_node 2 \
		--log_dir output/quickstart/log launch/train.py --config configs/quickstart.yaml \
		trainer.resume=none
	@echo
	@$(VENV)/bin/fleetbert ask --bundle output/quickstart/bundle --file configs/questions.txt
	@echo
	@echo "Look at output/quickstart/report.html. Ask it something else:"
	@echo "  $(VENV)/bin/fleetbert ask --bundle output/quickstart/bundle \"Your text\""
	@echo "Train on your own table: see configs/sst2.yaml, and"
	@echo "  $(PYTHON) launch/train.py --help"

# A busy machine may spoil a test that kills and times real processes: tests/conftest.py says which
# run once more when they fail. Networks are tiny: a second thread costs more than it brings, and
# takes time from the other workers. What several threads do is tested where a test says so. What
# make tells its own children is not for those of the tests.
PYTEST = unset MAKEFLAGS MFLAGS MAKELEVEL; OMP_NUM_THREADS=1 $(PYTHON) -m pytest -q -n $(WORKERS) \
	--dist loadfile --no-loadscope-reorder --durations 15

test: venv packages ## Run the tests of every room, in some ten minutes
	$(PYTEST) $(TESTS) -m "not slow and not endurance"

test-all: venv venv-clients venv-publish packages packages-arm ## Run these and the slow ones, in half an hour
	$(PYTEST) $(TESTS) -m "not endurance"

test-slow: venv venv-clients venv-publish packages packages-arm ## Run the slow ones alone
	$(PYTEST) $(TESTS) -m "slow and not endurance"

test-part: venv packages ## Run a quarter of an hour of the tests, for a second Paddle: PADDLE=3
	$(PYTEST) $$(grep '^tests/' tests/part.txt)

endurance: venv packages ## Run the long proofs: kills at random, a soak, jobs killed over and over: KILLS=50 SEED=0
	FLEETBERT_KILLS=$(KILLS) FLEETBERT_SEED=$(SEED) $(PYTHON) -m pytest -q -m endurance \
		tests --ignore tests/benchmarks

lint: venv ## Check style and types
	$(PYTHON) -m ruff check $(SOURCES)
	$(PYTHON) -m ruff format --check $(SOURCES)
	@VENV=$(VENV) .ci/types
	$(PYTHON) .ci/api-page --check
	$(PYTHON) .ci/figures

api-page: venv ## Write docs/api.md from the docstrings
	$(PYTHON) .ci/api-page

docs: venv-publish ## Show the documentation as a site at http://127.0.0.1:8080
	.ci/docs serve

format: venv ## Rewrite the code in the project's style
	$(PYTHON) -m ruff check --fix $(SOURCES)
	$(PYTHON) -m ruff format $(SOURCES)

# With BUNDLE=output/sst2/bundle DATA=dev.tsv answering and serving as well; with PUBLISH=--publish
# the results go to docs/benchmarks/.
bench: venv venv-bench ## Measure this project beside others: make bench BUNDLE=... DATA=...
	$(PYTHON) -m pytest -q tests/bench
	$(PYTHON) tests/benchmarks train --full $(PUBLISH)
	$(PYTHON) tests/benchmarks distribute $(PUBLISH)
ifdef BUNDLE
	$(PYTHON) tests/benchmarks infer --bundle $(BUNDLE) --data $(DATA) $(PUBLISH)
	$(PYTHON) tests/benchmarks serve --bundle $(BUNDLE) --data $(DATA) $(PUBLISH)
endif

release: venv-publish ## Make dist/, the wheel, the sdist and its bill of materials: FLEETBERT_URL=https://...
	.ci/release $(DIST)

venv: ## Make .venv from requirements.lock; with PADDLE=3 .venv-paddle3
ifeq ($(PADDLE),3)
	@.ci/setup $(VENV) requirements-paddle3.lock $(PYTHONS_3) -e
else
	@.ci/setup $(VENV) requirements.lock $(PYTHONS_2) -e
endif

# Other people's clients need a protobuf that Paddle cannot use.
venv-clients:
	@.ci/setup .venv-clients requirements-clients.lock 3.10 3.11 3.12

# Ray and Spark (which needs Java 17), with this project on their workers.
venv-cluster:
	@.ci/setup .venv-cluster requirements-cluster.lock 3.10 3.11 3.12 -e

# What checks distributions and makes the site; never beside what it checks.
venv-publish:
	@.ci/setup .venv-publish .ci/publish.lock 3.10 3.11 3.12

# Other engines need a NumPy that Paddle 2.6.2 cannot use, and other servers older packages than these.
venv-bench:
	@.ci/setup .venv-bench requirements-bench.lock 3.11 3.12 3.10
	@.ci/setup .venv-servers requirements-servers.lock 3.11 3.12 3.10

# Compilers, libraries and a browser for tests: as root with apt-get, tried once for a list of them.
packages:
	@[ .cache/packages -nt .ci/packages ] || .ci/packages

# What runs programs for ARM.
packages-arm: packages
	@[ .cache/packages-arm -nt .ci/packages ] || .ci/packages arm

lock: ## Make the lock files anew from setup.py (needs uv); UPGRADE=--upgrade takes the newest
	.ci/lock $(UPGRADE)

clean: ## Remove the environments, caches and build products; output/ stays
	rm -rf .venv .venv-* .venv.lock build dist *.egg-info \
		.cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
