# Two commands do everything: `make demo` and `make test`. Both set up .venv first, which is redone only when
# pyproject.toml or constraints.txt change.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
NATIVE := src/fedgbo/native/built/portable.so
JOBS ?= 2
export PYTHONDONTWRITEBYTECODE :=  # tests start many processes; without caches each of them would compile the package

.PHONY: setup demo test lint types unit docs dist format presets results clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

setup: $(STAMP) $(NATIVE)  ## make .venv with everything in it, and build the C code

$(STAMP): pyproject.toml constraints.txt src/fedgbo_command.py  # the last is copied, not linked
	@$(PYTHON) -c 'import sys; sys.exit("fedgbo needs Python 3.11 or newer: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(NATIVE): $(wildcard src/fedgbo/native/*.[ch]) | $(STAMP)  # after a change; the installation has built it as well
	$(BIN)/python src/fedgbo/native/build.py || echo 'no C code: fedgbo runs at the speed of torch'

demo: setup  ## FedGBO against the other algorithms of the paper on real digits: a table and a picture
	$(BIN)/fedgbo compare paper --task digits --seeds 10 --eval-every 5

test: lint types unit docs  ## all checks

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup --quiet

docs: setup  ## the documentation site into site/; runs the notebooks and checks all links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: setup  ## the sdist and the wheel into dist/, and a check of their contents
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python scripts/check_dist.py

format: setup  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

presets: setup  ## search the digits presets again (112,000 rounds)
	$(BIN)/python scripts/tune_digits.py --jobs $(JOBS)

results: setup  ## docs/results.md from docs/results; with RUNS=FOLDER, these runs go there first
	$(BIN)/python scripts/results.py $(RUNS)

clean:  ## remove .venv and caches; runs/ stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis site dist
