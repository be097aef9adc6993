# make demo: set up and show a result.  make test: set up, lint, types and tests.  Both start from nothing but Python.
# The demo installs what it needs and no more; everything else adds the rest to the same .venv.
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 0
.DEFAULT_GOAL := help

help:
	@echo "make demo   train on built-in data, probe, print a table and write a report"
	@echo "make test   lint, types and tests"
	@echo "make slow   the tests that take longer"
	@echo "make fuzz   20,000 random calls against a float64 computation; SEED=1 for others"
	@echo "make faults 200 kills of training, full disks, flipped bits, dying workers, two starts of one run; part of make slow"
	@echo "make mutations      faults planted in a copy of the source, one at a time: a quick test must fail for each"
	@echo "make differential   the same problems solved by POT, geomloss, OTT-JAX and pytorch-metric-learning"
	@echo "make clients        our losses inside sentence-transformers, pytorch-metric-learning, lightly, OpenCLIP, scikit-learn, POT"
	@echo "make versions       the core tests with each Python and torch that is supported and can be installed"
	@echo "make dependencies   known vulnerabilities of the pinned dependencies"
	@echo "make docs   the site, in site/"
	@echo "make pages  write again the pages and pictures that follow from the code"
	@echo "make clean  remove .venv, the site and the caches of tools; runs/ stays"

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.venv/demo: pyproject.toml constraints.txt
	@echo "installs torch, lightning, kornia, scikit-learn and what they need into .venv: about 1.2 GB, a few minutes"
	$(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt -e '.[demo]'
	@touch $@

.venv/ready: .venv/demo
	@echo "adds the rest of the lab, and what lints and tests it: about 0.8 GB more"
	$(PIP) -c constraints.txt -e '.[train,dev]'
	@touch $@

demo: .venv/demo
	$(BIN)/gcalign demo

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -m "not slow"

slow: .venv/ready
	$(BIN)/pytest -m slow

fuzz: .venv/ready
	cd tests && ../$(BIN)/python -m fuzz --cases 20000 --seed $(SEED)
	cd tests && ../$(BIN)/python -m fuzz.entries --cases 2000 --seed $(SEED)
	cd tests && ../$(BIN)/python -m fuzz.audits --cases 500 --seed $(SEED)
	cd tests && ../$(BIN)/python -m fuzz --compile --cases 60 --seed $(SEED)

faults: .venv/ready
	$(BIN)/pytest -s -n 0 -m slow tests/lab/training/test_faults.py

mutations: .venv/ready
	$(BIN)/python tests/mutations.py

differential: .venv/ready
	$(PIP) -c constraints.txt -e '.[peers]'
	$(BIN)/pytest -s tests/core/test_differential.py

versions:
	$(PYTHON) tests/versions.py

clients: .venv/ready
	$(BIN)/python tests/clients.py $(if $(CHECKOUTS),--checkouts $(CHECKOUTS))

dependencies: .venv/ready
	$(PIP) pip-audit
	$(BIN)/pytest -rs tests/test_dependencies.py

pages: .venv/ready
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/life_of_a_call.py
	$(BIN)/python docs/explorer/emoji.py

docs: .venv/ready
	$(PIP) -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

clean:
	rm -rf .venv site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

.PHONY: help demo test slow fuzz faults mutations differential versions clients dependencies pages docs clean
