# Two commands for a fresh machine: `make demo` and `make test`. Each needs Python 3.11+ and make, nothing else.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-gpu lint docs clean

demo: $(VENV)/.torch
	@$(BIN)/fallline demo

test: $(VENV)/.test lint
	$(BIN)/python -m pytest -n 2 tests

lint: $(VENV)/.test
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m fallline.docs --check

# Needs a machine with an accelerator, with torch and triton installed; installs nothing.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu tests

docs: $(VENV)/.test
	$(BIN)/python -m fallline.docs

$(VENV)/.torch: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fallline needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making a virtual environment in $(VENV) (once; torch takes a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[rich]'
	@touch $@

$(VENV)/.test: $(VENV)/.torch
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group test --group lint
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
