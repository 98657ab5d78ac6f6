# make run    set up .venv and run the example: FedAvg against fair methods on embedded data (ARGS=--open shows the report)
# make test   everything CI runs: format, lint, types, tests
# make lint   format, lint and types alone
# make docs   build the docs site into site/, without a network; docs-serve shows it while you write
# make bench  the benchmarks whose figures are in the docs (minutes)
# make torture  kill it, damage it, fuzz it, lie to it (minutes; docs/results/reliability.md)

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

.PHONY: run test lint format docs docs-serve bench torture clean

run: .venv/ready
	$(BIN)/evenhand run $(ARGS)

test: lint
	$(BIN)/python -m pytest -n auto

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/ready
	$(MKDOCS) build --strict --quiet

docs-serve: .venv/ready
	$(MKDOCS) serve

bench: .venv/ready
	$(BIN)/python -m benchmarks.speed cpu --check
	$(BIN)/python -m benchmarks.startup --check
	$(BIN)/python -m benchmarks.commands --check
	$(BIN)/python -m benchmarks.population --check
	$(BIN)/python -m benchmarks.loading
	$(BIN)/python -m benchmarks.models
	$(BIN)/python -m benchmarks.report --check
	$(BIN)/python -m benchmarks.federation --check

torture: .venv/ready
	$(BIN)/python -m benchmarks.torture --check

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis site

# ---- releases (RELEASING.md) and other versions

# make changelog      what the fragments in changelog.d add to the next release
# make dist           the sdist and the wheel, in dist
# make release-check  build, install into a new environment and use what would be released (minutes)
# make lowest         fast tests with the lowest versions that pyproject.toml allows (minutes)
# make newest         the same with the newest versions there are

.PHONY: changelog dist release-check lowest newest

changelog: .venv/ready
	$(BIN)/towncrier build --draft

dist: .venv/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation

release-check: .venv/ready
	$(BIN)/python -m tools.release_check

lowest:
	$(PYTHON) -m tools.environments lowest

newest:
	$(PYTHON) -m tools.environments newest
