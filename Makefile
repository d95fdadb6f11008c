# Needs Python 3.11 or newer and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help run test check format bench soak mutants clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(INSTALLED) ## Flood an embedded AWS, run the reference handler, judge, report
	$(BIN)/loadtest run

test: $(INSTALLED) ## Run the test suite
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

check: $(INSTALLED) ## Everything a change must pass: lint, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) test

format: $(INSTALLED) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED) ## Measure drain, send, overhead (each beside its bare minimum), judging and exploring
	$(BIN)/python -m benchmarks.drain
	$(BIN)/python -m benchmarks.send
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.judge
	$(BIN)/python -m benchmarks.explore

soak: $(INSTALLED) ## Seeds of the reference handler and of planted bugs, all faults at once, 200,000 worlds
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.fault_soak
	$(BIN)/python -m benchmarks.ground_truth --worlds 200000
	ONCEPROOF_TEST_SHARE=10 $(BIN)/python -m pytest -n 2 --timeout 1200 tests/test_explore_core.py tests/test_ground_truth.py

mutants: $(INSTALLED) ## Run every planted bug that a flood can show, and its correct twin
	$(BIN)/loadtest mutants

clean: ## Remove the environment and everything made by tools
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "onceproof needs Python 3.11 or newer; name one with make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
