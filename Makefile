# Each target starts from nothing but Python >= 3.11 and a C++ compiler.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= dev,docs,readers,gpt,hf,tasks,bitsandbytes,sinks,notebooks,search,dask,ray,slurm
# One computing thread a process: parallelism comes from processes.
export OMP_NUM_THREADS ?= 1
# Bytecode is kept: each of the processes that tests start would else compile the project anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup sweep notebooks test fast test-slow check docs publish coverage golden cuda-environment dist bench results clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing everything into $(VENV): about 3 GB, some minutes without output."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

# From nothing to a finished sweep and its report; give it again and it trains only what is missing.
sweep: setup
	$(BIN)/python -m grok.run -m experiment=quickstart 'seed=range(0,64)' store.path=results/quickstart
	$(BIN)/python -m analysis.report results/quickstart

# The notebooks in Jupyter: make notebooks GROK_STORE=results/quickstart
GROK_STORE ?= results/store
notebooks: setup
	$(BIN)/jupytext --quiet --sync notebooks/*.py
	GROK_STORE=$(abspath $(GROK_STORE)) $(BIN)/jupyter lab notebooks

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Checks and tests side by side: the type checker has one process, and the tests wait for others now and then.
test: setup
	@$(MAKE) --no-print-directory --jobs=2 check fast

fast: setup
	$(BIN)/pytest -n 2 --dist worksteal

# The documentation as pages in site/, generated pages included; warnings are errors.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Build the site and push it as the branch gh-pages: make publish REMOTE=origin
REMOTE ?= origin
publish: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs gh-deploy --strict --quiet --remote-name $(REMOTE)

# Line and branch coverage of the fast tests, commands in subprocesses included; the page is .coverage/html/index.html.
coverage: setup
	rm -rf .coverage && mkdir .coverage
	$(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term --cov-report=html

# Torch's CUDA build (about 5 GB, from PyPI) in an environment of its own: tests/benchmarks/test_benchmarks.py examines
# the code that is generated for a GPU with it, and needs no GPU. PIP_FIND_LINKS is emptied so that no CPU build wins.
CUDA_VENV ?= .venv-cuda
cuda-environment: $(CUDA_VENV)/.installed

$(CUDA_VENV)/.installed: constraints.txt
	test -x $(CUDA_VENV)/bin/python || $(PYTHON) -m venv $(CUDA_VENV)
	PIP_FIND_LINKS= $(CUDA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		'torch===$(shell sed -n 's/^torch==\([0-9.]*\).*/\1/p' constraints.txt)' 'numpy<2.4' scipy pyyaml
	touch $@

# Hours of exhaustive tests; a part of them: make test-slow TESTS=tests/analysis
TESTS ?= tests
test-slow: setup
	$(BIN)/pytest -m slow --timeout 3600 $(TESTS)

# Only when results are meant to change: raise NUMERICS_VERSION first and say why in CHANGELOG.md.
golden: setup
	$(BIN)/python -m tests.golden.regenerate
	$(BIN)/python -m tests.gpt.regenerate
	git diff --stat -- tests

# Source archive and wheel in dist/, checked. A release gives its tag: make dist TAG=v0.1.0
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' grok/version.py)
DIST_VENV ?= .venv-dist
dist: $(DIST_VENV)/.installed
	@test -z '$(TAG)' || test '$(TAG)' = 'v$(VERSION)' || { echo 'the tag $(TAG) is not v$(VERSION)' >&2; exit 1; }
	rm -rf dist
	$(DIST_VENV)/bin/python -m build --outdir dist
	$(DIST_VENV)/bin/twine check --strict dist/*
	$(DIST_VENV)/bin/check-wheel-contents dist/*.whl

$(DIST_VENV)/.installed:
	$(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install --quiet build twine check-wheel-contents
	touch $@

# JAX is here for the benchmark alone, which compares with it.
bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'jax>=0.6'
	$(BIN)/python -m benchmarks.seeds

# Every page of results/ that has a store of its own, rebuilt from it, and the example of a report.
results: setup
	$(BIN)/python -m analysis.pages --into README.md $(patsubst %/store/,%,$(wildcard results/*/store/))
	$(BIN)/python -m analysis.report results/quickstart-census/store --out results/example-report

clean:
	rm -rf $(VENV) build dist *.egg-info
