# `make demo` shows the program, `make check` is for every edit, `make test` for every commit. Each target makes what
# it needs first, once. `make test` touches no cluster, whatever KUBECONFIG says; `make test-cluster` does.
# `make test-long` has what fills the machine or takes long.
#
# torch is installed under constraints-dev.txt only: an unpinned torch pulls gigabytes of CUDA packages.

PYTHON ?= python3
PIP_ARGS ?=
# Consecutive tests stay in one process, so that they share what their module sets up.
PYTEST_ARGS ?= -n 2 --dist worksteal
# most of the time of these tests is spent waiting for pods
CLUSTER_ARGS ?= -n 3
CHAOS_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 10 -c constraints-dev.txt $(PIP_ARGS)
OPTIONAL := adamw8bit kernels kubeflow ray monarch llm mlflow tensorboard
EXTRAS := $(shell echo dev $(OPTIONAL) | tr ' ' ,)
INPUTS := pyproject.toml constraints-dev.txt
# What `make check` and `make test` run before pytest: name=command, with _ for a space.
CHECKS := ruff=ruff_check format=ruff_format_--check mypy=mypy_--strict imports=lint-imports
LINT = failed=""; \
	for check in $(CHECKS); do \
	    command=$$(echo "$${check\#*=}" | tr _ ' '); \
	    echo "== $$command"; \
	    $(BIN)/$$command || failed="$$failed $${check%%=*}"; \
	done; \
	if [ -n "$$failed" ]; then echo "== failed before pytest:$$failed"; fi; \
	echo "== pytest"
# `make check` does not collect these: their tests start processes, but for a few, or need torch.
NOT_CHECKED := src/windlass/conformance/cases tests/warm tests/parity tests/examples tests/train tests/recipes
# Byte code is cached whatever the environment says: tests start thousands of processes of these sources.
PYTEST := env -u PYTHONDONTWRITEBYTECODE -u KUBECONFIG $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo check test test-long test-cluster test-contract test-faults bench api reference protocol clean

help:  ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'PYTHON=python3.12 chooses the interpreter, PIP_ARGS="..." goes to pip, PYTEST_ARGS="..." to pytest.'

demo: $(VENV)/.demo  ## a DDP training on 2 nodes x 2 processes of this machine
	$(BIN)/windlass run examples/01_ddp.py --nodes 2 --procs 2
	@echo 'to go on by hand: . $(BIN)/activate; windlass --help'

check: $(VENV)/.dev  ## lint, types, contracts, and the tests that need neither torch nor another process
	@$(LINT); \
	$(PYTEST) --no-processes -m "not crowd and not long" $(PYTEST_ARGS) \
	    $(foreach folder,$(NOT_CHECKED),--ignore=$(folder)) && [ -z "$$failed" ]

test: $(VENV)/.dev  ## ruff, mypy, import-linter and the tests, but for the long ones
	@$(LINT); \
	$(PYTEST) -m "not crowd and not long" $(PYTEST_ARGS) && [ -z "$$failed" ]

test-long: $(VENV)/.dev  ## examples, pages and programs from start to end, networks that are cut, what fills the machine
	@failed=""; \
	$(PYTEST) -m crowd || failed="$$failed crowd"; \
	$(PYTEST) -m "long and not cluster and not crowd" $(PYTEST_ARGS) && [ -z "$$failed" ]

test-cluster: $(VENV)/.dev  ## the tests on the cluster that KUBECONFIG names
	@[ -n "$$KUBECONFIG" ] || { echo "make $@: KUBECONFIG must name a kubeconfig" >&2; exit 2; }
	$(BIN)/python -m pytest -m "cluster and not chaos and not thorough" $(CLUSTER_ARGS)

test-contract: $(VENV)/.dev  ## the whole contract suite on the cluster that KUBECONFIG names, on the tests' own dialect too
	@[ -n "$$KUBECONFIG" ] || { echo "make $@: KUBECONFIG must name a kubeconfig" >&2; exit 2; }
	$(BIN)/python -m pytest -m "cluster and not chaos" $(PYTEST_ARGS) src/windlass/conformance/cases

test-faults: $(VENV)/.dev  ## pods, machines and networks that fail, one after another: an hour, alone on the cluster
	@[ -n "$$KUBECONFIG" ] || { echo "make $@: KUBECONFIG must name a kubeconfig" >&2; exit 2; }
	$(BIN)/python -m pytest -m "cluster and chaos" $(CHAOS_ARGS)

bench: $(VENV)/.dev  ## start, re-run and restart against torchrun, as ratios (minutes)
	$(BIN)/python benchmarks/launch.py $(BENCH_ARGS)

api: $(VENV)/.dev  ## what editors know of the public keywords, from the table of settings
	$(BIN)/python tools/write_api.py

reference: $(VENV)/.dev  ## docs/reference/, from docstrings, commands and the table of settings
	$(BIN)/python tools/write_reference.py

protocol: $(VENV)/.dev  ## docs/protocol.md, from the records of the messages
	$(BIN)/python tools/write_protocol.py

clean:  ## remove what make and the tools have made here
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.demo: $(VENV)/.python $(INPUTS)
	@echo "installing windlass and torch into $(VENV)"
	@$(PIP) -e . torch numpy
	@touch $@

$(VENV)/.dev: $(VENV)/.python $(INPUTS)
	@echo "installing windlass, torch and the development tools into $(VENV)"
	@# all at once; where that fails (a part that this Python has not, a registry that is away), one by one
	@$(PIP) -e '.[$(EXTRAS)]' || { \
	    $(PIP) -e '.[dev]' || exit 1; \
	    for extra in $(OPTIONAL); do \
	        $(PIP) -e ".[$$extra]" || echo "$$extra cannot be installed here: its tests are skipped"; \
	    done; \
	}
	@# its build reads the torch that is here, and compiles nothing
	@DS_BUILD_OPS=0 $(PIP) --no-build-isolation deepspeed || \
	    echo "deepspeed cannot be installed here: its tests are skipped"
	@touch $@ $(VENV)/.demo

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "there is no $(PYTHON) here: install Python 3.10 or newer, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), 3.10 or newer is needed: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make virtual environments: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV)
	@touch $@
