# kvlab: the two commands are `make lab` and `make test`. Works with GNU make 3.81 and BSD tools.
#
#   make lab LAB_ARGS="--no-browser --port 8899"    options for JupyterLab
#   make test TEST_ARGS="-k offset_mask"            options for pytest
#   make bench BENCH_ARGS="--help"                  options for the benchmark
#   make model MODEL_ARGS="--check"                 options for the real model's weights
#   make .venv PYTHON=python3.12                    the Python to build the environment with
#   make .venv TORCH_INDEX=                         torch from the usual index, not PyTorch's CPU builds

LAB_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=
BUILD_ARGS ?=
MODEL_ARGS ?=

RUN = .venv/bin/python

# One BLAS thread a test worker: pytest runs a worker a core, and two threads on one core wait for each other.
ONE_THREAD = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 VECLIB_MAXIMUM_THREADS=1
PYTEST = $(ONE_THREAD) $(RUN) -m pytest -n auto --dist loadscope --durations=10

# Where the weights cannot be had, one line says so; what needs them is skipped and the rest goes on.
MODEL = $(RUN) tools/model.py --optional

.PHONY: help lab model test test-all test-browser check build bench clean

help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

lab: .venv/built ## Open the course in JupyterLab, at lesson 00 (LAB_ARGS="--no-browser --port 8899").
	@$(MODEL)
	@$(RUN) tools/lab.py $(LAB_ARGS)

model: .venv/built ## Fetch SmolLM2-135M and convert it into models/, 93 MB to fetch, 540 MB on disk.
	@$(RUN) tools/model.py $(MODEL_ARGS)

test: .venv/built ## Run every notebook, test and documented example (TEST_ARGS="-k mask").
	@$(MODEL)
	@$(PYTEST) -m "not slow and not browser" $(TEST_ARGS)

test-all: .venv/built ## The same with the slow tests, one of which installs nbgrader: what CI runs.
	@$(MODEL)
	@$(PYTEST) -m "not browser" $(TEST_ARGS)

# In one process: the pages share a server and a browser.
test-browser: .venv/built ## Drive every widget in JupyterLab and Notebook 7 in Chromium; pictures go to artifacts/.
	@$(MODEL)
	@$(ONE_THREAD) $(RUN) -m pytest tests/browser -m browser --durations=10 $(TEST_ARGS)

check: .venv/built ## Lint, formatting, types, and whether what is generated equals its source; changes nothing.
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(RUN) tools/build.py --check

build: .venv/built ## Execute and write all notebooks, the README's table and picture (one lesson: BUILD_ARGS=03).
	@$(MODEL)
	@$(RUN) tools/build.py $(BUILD_ARGS)

bench: .venv/built ## Measure this machine and write results/*.json, which lesson 07 shows.
	@$(MODEL)
	@$(RUN) -m kvlab.bench $(BENCH_ARGS)
	@[ -n "$(BENCH_ARGS)" ] || $(RUN) tools/bench_checks.py

clean: ## Remove the environment, the model and all caches; nothing that is committed.
	rm -rf .venv models build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find . -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

.venv: .venv/built ## Build or update the environment; every other target does it when it is needed.

# PYTHON and TORCH_INDEX given to make reach the script through the environment.
.venv/built: requirements.txt pyproject.toml tools/set_up.sh
	@sh tools/set_up.sh
