# Run `make demo` to try the program, `make check` after every edit, and `make test` before every commit. Each
# target first installs what it needs, once. `make test` never uses a cluster, even if KUBECONFIG is set.
# `make test-cluster` does. `make test-long` runs the tests that use the whole machine or take long.
#
# torch is installed only under constraints-dev.txt, because an unpinned torch pulls gigabytes of CUDA packages.

PYTHON ?= python3
PIP_ARGS ?=
# Consecutive tests stay in one process, so that they share the set-up of their module. Most tests wait for
# processes half of the time, so three run on two cores.
PYTEST_ARGS ?= -n 3 --dist worksteal
# These tests use all cores.
LONG_ARGS ?= -n 2 --dist worksteal
# These tests mostly wait for pods, so more of them run in parallel.
CLUSTER_ARGS ?= -n 3
CHAOS_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 10 -c constraints-dev.txt $(PIP_ARGS)
OPTIONAL := adamw8bit kernels kubeflow ray monarch llm mlflow tensorboard
EXTRAS := $(shell echo dev $(OPTIONAL) | tr ' ' ,)
INPUTS := pyproject.toml constraints-dev.txt
# Checks that `make check` and `make test` run before pytest: name=command, with _ for a space.
CHECKS := ruff=ruff_check format=ruff_format_--check mypy=mypy_--strict imports=lint-imports
LINT = failed=""; \
	for check in $(CHECKS); do \
	    command=$$(echo "$${check\#*=}" | tr _ ' '); \
	    echo "== $$command"; \
	    $(BIN)/$$command || failed="$$failed $${check%%=*}"; \
	done; \
	if [ -n "$$failed" ]; then echo "== failed before pytest:$$failed"; fi; \
	echo "== pytest"
# `make check` does not collect these folders, because most of their tests start processes, need torch or wait.
NOT_CHECKED := src/windlass/conformance/cases tests/warm tests/parity tests/examples tests/train tests/recipes tests/attacks \
    tests/engines
# Always cache byte code, because tests start thousands of processes of these sources.
PYTEST := env -u PYTHONDONTWRITEBYTECODE -u KUBECONFIG $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo check test test-long test-cluster test-contract test-faults bench api reference protocol clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'Set PYTHON=python3.12 to choose the interpreter, PIP_ARGS="..." for pip and PYTEST_ARGS="..." for pytest.'

demo: $(VENV)/.demo  ## run a DDP training on 2 nodes x 2 processes of this machine
	$(BIN)/windlass run examples/01_ddp.py --nodes 2 --procs 2
	@echo 'to continue by hand: . $(BIN)/activate; windlass --help'

check: $(VENV)/.dev  ## run ruff, mypy, import-linter, and the tests that need neither torch nor another process
	@$(LINT); \
	$(PYTEST) --no-processes -m "not crowd and not long" $(PYTEST_ARGS) \
	    $(foreach folder,$(NOT_CHECKED),--ignore=$(folder)) && [ -z "$$failed" ]

test: $(VENV)/.dev  ## run ruff, mypy, import-linter and all but the long tests
	@$(LINT); \
	$(PYTEST) -m "not crowd and not long" $(PYTEST_ARGS) && [ -z "$$failed" ]

test-long: $(VENV)/.dev  ## run the long tests: whole examples and pages, network cuts, and full load
	@failed=""; \
	$(PYTEST) -m crowd || failed="$$failed crowd"; \
	$(PYTEST) -m "long and not cluster and not crowd" $(LONG_ARGS) && [ -z "$$failed" ]

test-cluster: $(VENV)/.dev  ## run the tests on the cluster of KUBECONFIG
	@[ -n "$$KUBECONFIG" ] || { echo "make $@: KUBECONFIG must name a kubeconfig" >&2; exit 2; }
	$(BIN)/python -m pytest -m "cluster and not chaos and not thorough" $(CLUSTER_ARGS)

test-contract: $(VENV)/.dev  ## run the whole contract suite on the cluster of KUBECONFIG, including the tests' own dialect
	@[ -n "$$KUBECONFIG" ] || { echo "make $@: KUBECONFIG must name a kubeconfig" >&2; exit 2; }
	$(BIN)/python -m pytest -m "cluster and not chaos" $(PYTEST_ARGS) src/windlass/conformance/cases

test-faults: $(VENV)/.dev  ## run the fault tests of pods, machines and networks, alone on the cluster (an hour)
	@[ -n "$$KUBECONFIG" ] || { echo "make $@: KUBECONFIG must name a kubeconfig" >&2; exit 2; }
	$(BIN)/python -m pytest -m "cluster and chaos" $(CHAOS_ARGS)

bench: $(VENV)/.dev  ## compare start, re-run and restart with torchrun, as ratios (minutes)
	$(BIN)/python benchmarks/launch.py $(BENCH_ARGS)

api: $(VENV)/.dev  ## write the types of the public keywords from the table of settings
	$(BIN)/python tools/write_api.py

reference: $(VENV)/.dev  ## write docs/reference/ from docstrings, commands and the table of settings
	$(BIN)/python tools/write_reference.py

protocol: $(VENV)/.dev  ## write docs/protocol.md from the records of the messages
	$(BIN)/python tools/write_protocol.py

clean:  ## remove all files that make and the tools have created
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.demo: $(VENV)/.python $(INPUTS)
	@echo "installing windlass and torch into $(VENV)"
	@$(PIP) -e . torch numpy
	@touch $@

$(VENV)/.dev: $(VENV)/.python $(INPUTS)
	@echo "installing windlass, torch and the development tools into $(VENV)"
	@# Install all extras together. If that fails (no build for this Python, no registry), install them one by one.
	@$(PIP) -e '.[$(EXTRAS)]' || { \
	    $(PIP) -e '.[dev]' || exit 1; \
	    for extra in $(OPTIONAL); do \
	        $(PIP) -e ".[$$extra]" || echo "$$extra cannot be installed here: its tests are skipped"; \
	    done; \
	}
	@# The build of deepspeed needs the installed torch, and compiles nothing.
	@DS_BUILD_OPS=0 $(PIP) --no-build-isolation deepspeed || \
	    echo "deepspeed cannot be installed here: its tests are skipped"
	@touch $@ $(VENV)/.demo

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "$(PYTHON) was not found: install Python 3.10 or newer, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), but 3.10 or newer is required: run make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "$(PYTHON) cannot create virtual environments: on Debian and Ubuntu, run apt install python3-venv" >&2; exit 1; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV)
	@touch $@
