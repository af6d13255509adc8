# make setup · make test · make test-slow · make test-browser · make lint · make demo · make bench
PYTHON ?= python3
BIN := .venv/bin

unexport PYTHONDONTWRITEBYTECODE # without bytecode, every process that a test starts compiles Headway anew

.PHONY: setup test tests test-slow test-browser lint style types types-aside demo bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch .venv/ready

lint: style types

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

test: style # then types beside tests: pyright keeps one core busy for a minute or two. What it said comes last
	@$(MAKE) --no-print-directory -j 2 types-aside tests; ended=$$?; cat .venv/types.txt; exit $$ended

types-aside: setup
	@$(BIN)/pyright > .venv/types.txt 2>&1

tests: setup
	$(BIN)/pytest -n auto --dist loadfile # a worker per core; what the tests of one file share is made once

test-slow: setup
	$(BIN)/pytest -m slow

test-browser: setup
	$(BIN)/pytest -m "" tests/workbench # all of the workbench, in a chromium; skipped, visibly, where there is none

demo: setup
	$(BIN)/headway case B7 --quick

bench: setup
	$(BIN)/python -m benchmarks.language_model_cpu

clean:
	rm -rf .venv runs studies
