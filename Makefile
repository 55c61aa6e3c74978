# The commands that people type. `make demo` and `make test` set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
JOBS ?= 2

.PHONY: help venv demo test test-all test-long test-adapters cluster check lint bench lock clean

help:
	@echo "make demo    grade a small task set and print its verdicts"
	@echo "make test    all tests but the slow ones"
	@echo "make check   formatter, linter, types, import contracts, execd's syntax, and all tests but the long ones"
	@echo "make test-long  the long ones: minutes each, also on a cluster where one is up"
	@echo "make test-adapters  adapters and parsers beside the real trainers, agents and swebench (2 GB of packages)"
	@echo "make cluster the tests that need Kubernetes, on a cluster that is brought up and stopped again (Debian, root)"
	@echo "make bench   measure, and write docs/benchmarks.md"
	@echo "make lock    pin the newest versions that pyproject.toml allows into requirements.txt"

venv: $(VENV)/.stamp

$(VENV)/.stamp: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	grep -A 100 '^uv==' requirements.txt | awk 'NR>1 && /^[a-z]/ {exit} {print}' > $(VENV)/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.txt \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: venv
	$(BIN)/python -m tests.demo

test: venv
	$(PYTEST) -n $(JOBS) -m "not slow and not long"

test-all: venv
	$(PYTEST) -n $(JOBS) -m "not long"

test-long: venv
	$(PYTEST) -n $(JOBS) -m long

test-adapters: $(VENV)-adapters/.stamp
	$(VENV)-adapters/bin/python -m pytest -n $(JOBS) tests/grader/test_adapters*.py tests/grader/test_mini_swe_agent.py \
	  tests/tasksets/test_official.py
	PYTHONPATH=$(VENV)-adapters/swebench5 $(VENV)-adapters/bin/python -m pytest tests/grader/test_parsers.py

# torch is not locked: the builds for different machines are different files.
$(VENV)-adapters/.stamp: tests/adapters.txt tests/parsers.txt pyproject.toml | venv
	$(PYTHON) -m venv $(VENV)-adapters
	$(VENV)-adapters/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/uv pip install --quiet --python $(VENV)-adapters/bin/python --no-deps --require-hashes -r tests/adapters.txt
	$(BIN)/uv pip install --quiet --target $(VENV)-adapters/swebench5 --no-deps --require-hashes -r tests/parsers.txt
	$(BIN)/uv pip install --quiet --python $(VENV)-adapters/bin/python --no-deps --no-build-isolation -e .
	touch $@

cluster: venv
	tests/cluster/with $(PYTEST) -n $(JOBS) -m cluster tests/cluster tests/faults

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations --target=3.6- execd
	$(BIN)/vermin --quiet --no-tips --violations --target=3.4- grader/reporters

check: lint test-all

bench: venv
	$(BIN)/python -m tests.bench

COMPILE := $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate --no-header \
  --no-emit-index-url --no-emit-find-links --group dev pyproject.toml

lock: venv
	$(COMPILE) --universal -o requirements.txt
	echo "torch; sys_platform == 'none'" | $(COMPILE) --python-platform linux --override - tests/adapters.in \
	  -o tests/adapters.txt

clean:
	rm -rf $(VENV) $(VENV)-adapters build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
