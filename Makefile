PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: help setup demo test test-slow check format clean
.PHONY: bench-engines bench-overhead bench-selection bench-baselines bench-deployment
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: $(READY) ## Make .venv and install Muster in it

$(READY): pyproject.toml
	@echo "Setting up $(VENV) (a few minutes, once)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(READY) ## Run SCKM-Select on the digits, on Ray, and draw two pictures
	$(BIN)/muster run --engine ray --clients 10

test: $(READY) ## Run the tests
	$(BIN)/python -m pytest

test-slow: $(READY) ## Run the slow tests too
	$(BIN)/python -m pytest -m ''

check: $(READY) ## Format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy

format: $(READY) ## Format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-engines: $(READY) ## Rounds per second against BlazeFL, pfl and Ray
	$(BIN)/python benchmarks/engines.py

bench-overhead: $(READY) ## Time per message against Flower's FedAvg, on Ray
	$(BIN)/python benchmarks/overhead.py

bench-selection: $(READY) ## Time and memory of the selection mathematics
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/selection.py

bench-baselines: $(READY) ## Time of each baseline's selection from 1,000 clients
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python benchmarks/baselines.py

bench-deployment: $(READY) ## Time of a round over real Flower processes, and memory with a 59 MB model
	$(BIN)/python benchmarks/deployment.py

clean: ## Remove .venv, those of bench-engines and caches; runs/ stays
	rm -rf $(VENV) .venv-blazefl .venv-pfl .venv-sklearn-extra .pytest_cache .mypy_cache .ruff_cache .hypothesis
