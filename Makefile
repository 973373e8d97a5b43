# Strandline. `make` alone says the words.
#
# The first target that needs it makes .venv and installs the package with every extra; a stamp keeps it from
# doing so again until pyproject.toml changes.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PYTHONS ?= python3.12 python3.13 python3.14
MATRIX_TESTS ?= tests/proto tests/log tests/replica tests/controller tests/client
SEEDS ?= 200
JOBS ?= 2
# Tests of real processes wait for most of their time: two more at a time than there are jobs keep the processors busy.
# Among the long ones are some with a JVM or two each: one more.
test: WORKERS ?= $(shell expr $(JOBS) + 2)
test-long: WORKERS ?= $(shell expr $(JOBS) + 1)
# Each node that a test or a demo starts would compile all of the package: half of the CPU of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check durations wheels matrix supply pins audit fuzz sanitize pictures help setup demo test lint docs docs-run site bench interop sim explore mutants soak clean compose-test

help:
	@echo "make demo          three nodes, a real data set, a killed leader, everything read back, Spark counts it"
	@echo "make test          the tests, save those that take minutes each"
	@echo "make test-long     every test"
	@echo "make check         lint of what differs from main, and the tests that this can reach; CHANGED='FILE...': of these files"
	@echo "make durations     take over the seconds of each file of tests that make test has just measured"
	@echo "make matrix        the tests of the parts under every other Python that is supported and there; PYTHONS=python3.13: that one"
	@echo "make lint          ruff, mypy, import-linter, tidiness, the generated docs"
	@echo "make docs          write the generated parts of docs/ anew"
	@echo "make site          the pages as a web site, in site/: a link that leads nowhere fails"
	@echo "make docs-run      every command and program of the pages, as typed in a fresh environment; PAGE=client: one page"
	@echo "make bench         measure speed and memory, beside each peer that can be had"
	@echo "make interop       other people's Kafka clients and tools, unmodified: one table, client by feature; SECURITY=sasl, oauth or mtls"
	@echo "make sim SEEDS=200 simulate so many seeds; SEED=7 replays one, BREAK=NAME takes a rule out"
	@echo "make explore       every state of the quorum and of a partition, within bounds; EXPLORE='--minutes 5' ends each sooner"
	@echo "make mutants       take each rule out of the code, one at a time: some test must notice"
	@echo "make fuzz MINUTES=5 a coverage-guided fuzzer on every parser; what it finds is kept in tests/hostile/corpus"
	@echo "make sanitize      what is compiled, under AddressSanitizer"
	@echo "make soak          half an hour of faults on real processes, in both layouts"
	@echo "make pictures DIRECTORY=d a picture of each result that strandline spark run --directory d has left"
	@echo "make compose-test  the image and the compose files in containers, with chaos (starts an engine if none runs)"
	@echo "make pins          write deploy/requirements.txt anew: the newest dependencies of the image, with their hashes"
	@echo "make audit         what is known against these dependencies, and their list (CycloneDX) as build/sbom.json"
	@echo "make wheels        binary wheels for every Python, glibc and musl, by cibuildwheel in its images (needs a container engine)"
	@echo "make clean         remove the virtual environment and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml src/strandline/log/_records.c src/strandline/log/_offsets.c src/strandline/log/_batches.h src/strandline/log/_reading.h src/strandline/log/_writing.h src/strandline/log/_sync.c src/strandline/client/_open_batches.c
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is needed: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,spark]'
	@touch $(STAMP)

demo: setup
	$(BIN)/strandline demo

# By the seconds that each file took in the run that tests/durations.json keeps: quick ones first, slowest ones next.
BY_TIME = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: setup
	$(BIN)/python -m pytest -q $(BY_TIME) --durations-to build/durations.json

durations: setup
	$(BIN)/python -m lab.durations

check: setup
	$(BIN)/python -m lab.check $(CHANGED)

test-long: setup
	$(BIN)/python -m pytest -q $(BY_TIME) --long --timeout 900

# One environment an interpreter, .venv-<name>; what a machine has not is left out, and said to be.
matrix:
	@for python in $(PYTHONS); do \
	  if ! $$python -c '' 2>/dev/null; then echo "$$python: left out, it is not here"; continue; fi; \
	  echo "$$python: $$($$python -VV)"; \
	  $(MAKE) --no-print-directory setup PYTHON=$$python VENV=.venv-$$(basename $$python) || exit 1; \
	  .venv-$$(basename $$python)/bin/python -m pytest -q -n $(JOBS) --dist loadfile $(MATRIX_TESTS) || exit 1; \
	done

# Each step on a core of its own; all of them are told of, not the first alone that fails.
LINTED := src tests bench interop lab docs/*.py docs/examples
STEPS := tests/test_citations.py tests/test_docs.py types style tests/test_tidy.py layers

# Its seconds are for docs/measure.py.
lint: setup
	@begun=$$SECONDS; $(MAKE) --no-print-directory --keep-going --jobs=$(JOBS) --output-sync=target $(addprefix lint/,$(STEPS)) \
	  && mkdir -p build && echo $$((SECONDS - begun)) > build/lint-seconds

lint/style:
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/ruff check $(LINTED)

lint/types:
	$(BIN)/mypy

lint/layers:
	$(BIN)/lint-imports

lint/tests/%:
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/$*

docs: setup
	$(BIN)/python docs/generate.py

site: setup
	@test $(VENV)/installed-docs -nt pyproject.toml || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

supply: setup
	@test $(VENV)/installed-supply -nt pyproject.toml || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[supply]'
	@touch $(VENV)/installed-supply

pins: supply
	@printf 'setuptools>=77\nwheel\n' | $(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --generate-hashes --no-annotate \
		--no-header --extra oauth pyproject.toml - --output-file deploy/requirements.txt
	@echo "deploy/requirements.txt: $$(grep -c == deploy/requirements.txt) packages"

# A package that the registry tells nothing about fails it too: unknown is not the same as safe.
audit: supply
	@mkdir -p build
	@$(BIN)/cyclonedx-py requirements deploy/requirements.txt --pyproject pyproject.toml --output-format JSON --output-file build/sbom.json 2>/dev/null
	@echo "build/sbom.json"
	@$(BIN)/pip-audit --requirement deploy/requirements.txt --require-hashes --disable-pip --progress-spinner off --strict

docs-run: setup
	$(BIN)/python -m pytest -q -ra tests/docs_run/pages.py $(if $(PAGE),-k $(PAGE))

bench: setup
	$(BIN)/python -m bench

interop: setup
	$(BIN)/python -m interop $(if $(ONLY),--only $(ONLY)) --against $(or $(AGAINST),strandline) --security $(or $(SECURITY),none)

sim: setup
	$(BIN)/$(if $(BREAK),python -m lab.sim --break $(BREAK),strandline sim) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) --jobs $(JOBS) --marks

explore: setup
	for preset in small usual overtaken zeroed; do \
	  $(BIN)/python -m lab.explore quorum --preset $$preset --jobs $(JOBS) $(EXPLORE) || exit 1; done
	for preset in small usual crashes late all-crash; do \
	  $(BIN)/python -m lab.explore partition --preset $$preset --jobs $(JOBS) $(EXPLORE) || exit 1; done

mutants: setup
	$(BIN)/python -m lab.mutants --jobs $(JOBS)

soak: setup
	$(BIN)/strandline chaos run --minutes 15 --seed $(or $(SEED),1)
	$(BIN)/strandline chaos run --minutes 15 --seed $(or $(SEED),1) --layout split

pictures: setup
	$(BIN)/python -m lab.pictures $(DIRECTORY)

compose-test: setup
	$(BIN)/python -m pytest -s -ra tests/deploy/compose_live.py

fuzz: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3'
	$(BIN)/python -m tests.hostile.fuzz --minutes $(or $(MINUTES),5)

sanitize: setup
	$(BIN)/python -m tests.hostile.sanitize

wheels: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'cibuildwheel>=4'
	$(BIN)/cibuildwheel --platform linux --archs $(or $(ARCHS),auto64) --output-dir dist/wheels

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
