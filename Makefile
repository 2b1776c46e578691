# What there is to do. `make` alone lists it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
ARGS ?=
#: Tests are shared among so many workers: `auto` is one more than there are cores, four at most; 0 is none (for a debugger).
WORKERS ?= auto
# Tests, stacks and demos start Python by the dozen. None compiles anew what another has compiled, wherever the environment
# forbids to write that beside the sources.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.build/pycache

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests up demo test fast kills mutants lint fmt bench openapi access capabilities time-limits ci gpu-pack locks clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## Install what `up` and `demo` need from wheels into .venv, .venv-serving and .venv-gateway (a second run does nothing)
	@$(PYTHON) -I sluicegate/stack/install.py

setup-tests: ## The same, and what only tests need: llama.cpp, Prometheus, MLServer, KServe, TensorRT for RTX (0.7 GB)
	@$(PYTHON) -I sluicegate/stack/install.py --tests $(if $(filter setup-tests,$(MAKECMDGOALS)),--again)

up: setup ## Run everything on this machine until Ctrl-C (ARGS="--port 8700 -v")
	@$(PY) -m sluicegate.cli up $(ARGS)

demo: setup ## Five releases under live traffic, two automatic rollbacks (ARGS="--exit --report out.json")
	@$(PY) -m sluicegate.cli demo $(ARGS)

test: setup-tests ## Every test, on real parts, shared among workers (ARGS="tests/flows -k engine" WORKERS=0)
	@$(PY) -m pytest -n $(WORKERS) $(ARGS)

# They compute, so that a worker for each core is enough; and properties are asked of fewer examples.
fast: WORKERS := logical
fast: export SLUICEGATE_TEST_EXAMPLES ?= 20
fast: setup ## A minute's worth: no pages, no servers of their own, nothing that takes seconds
	@$(PY) -m pytest -n $(WORKERS) -m "not slow" --ignore=tests/contracts --ignore=tests/flows --ignore=tests/kills --ignore=tests/migrations --ignore=tests/pages --ignore=tests/real $(ARGS)

kills: setup ## For a night: every process killed, and frozen, at its every write (ARGS="--only engine")
	@bad=0; for what in "--all" "--all --freeze" "--takeover 20"; do $(PY) -m tests.kills $$what $(ARGS) || bad=1; done; \
	SLUICEGATE_EVERY_STEP=1 $(PY) -m pytest -n 0 tests/flows/test_upload_kills.py || bad=1; exit $$bad

mutants: setup ## How many small changes of the cores the tests notice (ARGS="rollouts/core/plan.py --survivors")
	@$(PY) -m tests.mutants $(ARGS)

lint: setup ## Style (ruff, djhtml) and types (mypy); who may import whom is part of the tests
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@.venv/bin/djhtml --tabwidth 2 --check templates
	@$(PY) -m mypy

fmt: setup ## Let ruff and djhtml repair what they can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .
	@.venv/bin/djhtml --tabwidth 2 templates

bench: setup-tests ## Measure the numbers that the documents claim
	@set -e; for one in $$(grep -l '^if __name__ == ' benchmarks/*.py benchmarks/*/__main__.py benchmarks/*/*/__main__.py); do echo "== $$one"; PYTHONPATH=. $(PY) $$one $(ARGS); done

access: setup ## Write who may what at every address to docs/access.md, by asking
	@SLUICEGATE_WRITE_ACCESS=1 $(PY) -m pytest -n 0 -q tests/pages/test_access_of_pages.py tests/api/test_route_roles.py

openapi: setup ## Write the schema of the API to docs/
	@$(PY) manage.py spectacular --validate --format openapi-json --file docs/openapi.json

capabilities: setup-tests ## Run the tests on real parts that show a capability, and write the table of states (ARGS="tests/contracts")
	@SLUICEGATE_WRITE_CAPABILITIES=1 $(PY) -m pytest -n $(WORKERS) -q -m shows $(ARGS)
	@$(PY) -m tests.support.house.capabilities

time-limits: setup ## Write the table of all time limits to docs/time-limits.md
	@$(PY) -m tests.support.house.time_limits

ci: ## What continuous integration runs: lint, test, GPU proof, demo
	@.ci/run

gpu-pack: setup ## Build the archive for the GPU proof on a machine without a package index (.build/gpu-pack.tar.xz)
	@$(PY) -m benchmarks.gpu_proof.pack .build/gpu-pack.tar.xz

locks: setup ## Resolve the lock files anew from pyproject.toml, serving/*.in, benchmarks/*.in, tests/*.in and uv's newest version
	@.build/installer/bin/uv pip compile -q --no-header --generate-hashes --python-version 3.11 --upgrade --extra server --group dev pyproject.toml -o requirements.lock
	@for one in serving/*.in; do .build/installer/bin/uv pip compile -q --no-header --generate-hashes --python-version 3.11 --upgrade $$one -o $${one%.in}.lock || exit; done
	@.build/installer/bin/uv pip compile -q --no-header --generate-hashes --python-version 3.11 --upgrade benchmarks/fuzz.in -o benchmarks/fuzz.lock
	@.build/installer/bin/uv pip compile -q --no-header --generate-hashes --python-version 3.11 --upgrade benchmarks/loadgen.in -o benchmarks/loadgen.lock
	@.build/installer/bin/uv pip compile -q --no-header --generate-hashes --python-version 3.11 --upgrade tests/mlserver.in -o tests/mlserver.lock
	@.build/installer/bin/uv pip compile -q --no-header --generate-hashes --python-version 3.11 --upgrade tests/kserve.in -o tests/kserve.lock
	@.build/installer/bin/uv pip compile -q --no-header --generate-hashes --python-version 3.11 --upgrade tests/tensorrt_rtx.in -o tests/tensorrt_rtx.lock

clean: ## Remove everything that setup, tests and runs have made, the state folder's data included
	@if [ -f .state/postgres/location ]; then rm -rf "$$(cat .state/postgres/location)"; fi
	rm -rf .venv .venv-serving .venv-serving-* .venv-gateway .build .state .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
