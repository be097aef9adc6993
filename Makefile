# make demo: set up and show a result.  make test: set up, lint, types and tests.  Both start from nothing but Python.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

help:
	@echo "make demo   pretrain on the embedded data, probe, print a table and write a report"
	@echo "make test   lint, types and tests"
	@echo "make slow   the tests that take longer"
	@echo "make docs   the reference, as a site in site/"
	@echo "make clean  remove the virtual environment"

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	@touch $@

demo: .venv/ready
	$(BIN)/gcalign demo

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -m "not slow"

slow: .venv/ready
	$(BIN)/pytest -m slow

docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

clean:
	rm -rf .venv

.PHONY: help demo test slow docs clean
