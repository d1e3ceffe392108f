# Everything runs from a checkout with only python3 (>= 3.11) and make. `make help` lists the targets.

PYTHON ?= python3
WORKERS ?= 2
PYTEST_ARGS ?=
DATA ?=
ITEMS ?=
NAMES ?=

DEMO := .venvs/demo
NEWEST := .venv
OLDEST := .venvs/oldest
DOCS := .venvs/docs
RUN := $(NEWEST)/bin/python -m
# Compiled kernels of the tests and of the documentation, by the content of all sources: a fresh clone finds them.
KERNELS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/skdpmf-kernels
# One thread for BLAS in each of the workers: they share the machine. Bytecode is kept, whatever is set
# outside: each of the processes that tests start would compile the package again.
SETTINGS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= SKDPMF_KERNELS="$(KERNELS)"
PYTEST = $(SETTINGS) \
	$(1)/bin/python -m pytest -p tests.kernel_cache -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

.PHONY: help demo test test-rest test-all lint format types test-oldest test-nojit coverage docs bench bench-full clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */make \1|/' | \
		awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@echo "variables: PYTHON=$(PYTHON), WORKERS=$(WORKERS) (test processes), PYTEST_ARGS=, DATA=, ITEMS=, RANGE=, NAMES="

demo: $(DEMO)/.stamp  ## train and explain a private recommender; DATA=ratings.csv ITEMS=titles.csv RANGE="1 10" for your own
	@echo "loading numpy, scikit-learn and pandas, which takes some seconds the first time"
	@PYTHONDONTWRITEBYTECODE= $(DEMO)/bin/python -m skdpmf.commands.demo $(if $(DATA),--data "$(DATA)") $(if $(ITEMS),--items "$(ITEMS)") $(if $(RANGE),--rating-range $(RANGE))

test: lint types  ## lint, types and a first tier of the tests: eight minutes at most, and nearly all mistakes
	$(call PYTEST,$(NEWEST)) --tier first

test-rest: $(NEWEST)/.stamp-rest  ## all other tests, newest dependencies
	$(call PYTEST,$(NEWEST)) --tier rest

test-all: $(NEWEST)/.stamp-rest lint types  ## lint, types and all tests, in one run
	$(call PYTEST,$(NEWEST))

lint: $(NEWEST)/.stamp  ## ruff: rules and format
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .

format: $(NEWEST)/.stamp  ## let ruff format and repair what it can
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

types: $(NEWEST)/.stamp  ## mypy
	@$(RUN) mypy

# Tests of texts, pages and the network, and of arithmetic with integers and Python's own floats and files,
# say the same with any version of a dependency. All other files are there, also those that are new.
# Oldest versions of Dask and NumPy cannot join sparse blocks, so that test_cluster.py needs newer ones.
ANY_VERSION := $(addprefix tests/, \
	browser test_benchmarks.py test_distributions.py test_docstrings.py test_examples.py \
	test_figures.py test_house.py test_joining.py test_kernel_cache.py test_serving.py test_site.py \
	books/test_card_page.py books/test_ledger_cohorts.py books/test_ledger_damage.py \
	estimators/test_cluster.py books/test_ledger_file.py books/test_ledger_processes.py books/test_ledger_search.py \
	core/test_files.py core/test_planted.py core/test_search.py core/test_statistics.py \
	core/test_refresh_replay.py local/test_aggregator.py local/test_device.py mechanisms/test_plan.py \
	mechanisms/test_private_search.py privacy/test_accounting.py privacy/test_budget.py \
	privacy/test_composition.py privacy/test_pair_sensitivity.py \
	privacy/test_statement.py evaluation/test_audit_bugs.py evaluation/test_exchanged_ratings.py)

test-oldest: $(OLDEST)/.stamp  ## the first tier of what depends on versions, oldest supported dependencies
	$(call PYTEST,$(OLDEST)) --tier first $(addprefix --ignore=,$(ANY_VERSION))

test-nojit: $(NEWEST)/.stamp  ## the tests of kernels and cipher as plain Python, with the tiles of short vectors
	NUMBA_DISABLE_JIT=1 NUMBA_CPU_FEATURES= $(call PYTEST,$(NEWEST)) tests/kernels tests/privacy/test_cipher.py

coverage: $(NEWEST)/.stamp  ## all tests with the coverage floor (pyproject.toml), compiled kernels left out
	$(call PYTEST,$(NEWEST)) --cov

docs: $(DOCS)/.stamp  ## the documentation, with all examples run, in docs/_build/html; a warning is an error
	@echo "running examples and writing pages, which takes some minutes; unchanged pages are kept"
	$(SETTINGS) PYTHONPATH="$(CURDIR)/tests/site" \
		$(DOCS)/bin/python -m sphinx -b html -j auto -n -W --keep-going -q docs docs/_build/html

bench: $(NEWEST)/.stamp-bench  ## all benchmarks, quickly (a quarter of an hour), results to benchmarks/results
	@$(NEWEST)/bin/python benchmarks/run.py $(NAMES)

bench-full: $(NEWEST)/.stamp-bench  ## all benchmarks with the settings of their pages (a day); NAMES="utility sgld" for some
	@$(NEWEST)/bin/python benchmarks/run.py --full $(NAMES)

clean:  ## remove the environments and all caches
	rm -rf $(NEWEST) .venvs build dist htmlcov docs/_build docs/auto_examples docs/generated .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment is made anew when pyproject.toml (or its constraints) changes. The stamp is written
# last: an interrupted installation is started again. uv is used where it is there, and is quicker.
# Bytecode is not made for all of a package, most of which is never imported, but as it is needed.

# $(call ENVIRONMENT,folder,contents) and $(call INSTALL,folder,arguments): one more try for a flaky index
define ENVIRONMENT
@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("skdpmf needs Python >= 3.11, and \
	$(PYTHON) is %d.%d: make PYTHON=python3.12 ..." % sys.version_info[:2])'
@echo "making $(1), with $(2): this downloads packages and takes a minute or so"
@rm -rf $(1); if [ -n "$(UV)" ]; then $(UV) venv --quiet --python $(PYTHON) $(1); else \
	$(PYTHON) -m venv $(1) || { echo "no virtual environment: the venv module of $(PYTHON) is \
	not complete; on Debian and Ubuntu: apt install python3-venv"; exit 1; }; fi
endef
UV := $(shell command -v uv)
PIP_INSTALL = $(if $(UV),$(UV) pip install --python $(1)/bin/python $(2),$(1)/bin/python -m pip install \
	--no-compile --disable-pip-version-check --retries 10 $(2))
INSTALL = @$(PIP_INSTALL) || { echo "trying again"; sleep 15; $(PIP_INSTALL); }

$(DEMO)/.stamp: pyproject.toml
	$(call ENVIRONMENT,$(DEMO),the package and the libraries it needs)
	$(call INSTALL,$(DEMO),-e .)
	@touch $@

$(NEWEST)/.stamp: pyproject.toml
	$(call ENVIRONMENT,$(NEWEST),the tools of the tests)
	$(call INSTALL,$(NEWEST),-e ".[test]")
	@touch $@

$(NEWEST)/.stamp-rest: $(NEWEST)/.stamp
	@$(call PIP_INSTALL,$(NEWEST),-e ".[ray]") || echo "no ray for this Python: its tests are skipped"
	@touch $@

$(OLDEST)/.stamp: pyproject.toml requirements/oldest.txt
	$(call ENVIRONMENT,$(OLDEST),the oldest supported versions)
	$(call INSTALL,$(OLDEST),--constraint requirements/oldest.txt -e ".[test]")
	@touch $@

$(DOCS)/.stamp: pyproject.toml
	$(call ENVIRONMENT,$(DOCS),the tools of the documentation)
	$(call INSTALL,$(DOCS),-e ".[docs]")
	@touch $@

$(NEWEST)/.stamp-bench: $(NEWEST)/.stamp
	$(call INSTALL,$(NEWEST),-e ".[bench]")
	@touch $@
