# Two commands for a fresh machine: `make demo` and `make test`. Each needs Python 3.11+ and make, nothing else.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-gpu test-long lint docs evidence site bench clean

demo: $(VENV)/.torch
	@$(BIN)/fallline demo

# Compiled first: where Python writes no bytecode, every program that a test starts would compile us again. Each worker keeps to
# neighbouring tests until it has none left, so that what a file sets up is set up once.
test: $(VENV)/.test lint
	$(BIN)/python -m compileall -q src tests
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=40 --durations-min=5 tests

# Style, types, and documents that have drifted from the code they are made from.
lint: $(VENV)/.test
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy --num-workers 2
	$(BIN)/python -m fallline.docs --check

# Installs into an empty environment for each extra, tries the hooks with pre-commit and prek, and looks at the site.
test-long: $(VENV)/.long
	$(BIN)/python -m pytest -rs -m long tests

# Needs a machine with an accelerator, with torch and triton installed; installs nothing.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu tests

# Rule pages and the command line reference.
docs: $(VENV)/.test
	$(BIN)/python -m fallline.docs

# Measures every experiment again, and makes every document that quotes one. What needs a device keeps what was recorded on one.
evidence: $(VENV)/.test
	$(BIN)/fallline prove --all --out docs
	$(BIN)/python -m fallline.docs

# The documentation as a site, in site/: no network needed to build or to read it.
site: $(VENV)/.long
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Start-up, and speed side by side with other linters, which it installs into a folder of their own.
bench: $(VENV)/.test
	$(PIP) -c constraints.txt transformers
	$(BIN)/python benchmarks/startup.py --write
	$(BIN)/python benchmarks/check.py --write

$(VENV)/.torch: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fallline needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making a virtual environment in $(VENV) (once; torch takes a minute) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make virtual environments: install its venv module (on Debian and Ubuntu: python3-venv)"; exit 1; }
	@$(PIP) --upgrade pip
	@$(PIP) -c constraints.txt torch numpy
	@$(PIP) -c constraints.txt -e '.[rich]'
	@$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.test: $(VENV)/.torch
	@$(PIP) -c constraints.txt --group test --group frameworks --group loggers --group notebooks --group lint
	@touch $@

$(VENV)/.long: $(VENV)/.test
	@$(PIP) -c constraints.txt --group docs --group long
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .fallline_cache
