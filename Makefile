# Every target sets itself up: a fresh machine needs Python 3.11 (or newer) with venv, and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all test-dist check bench results docs dist clean

demo: .venv/ready
	$(BIN)/bitfreeze sweep digits5 --methods ft,blip,joint --seeds 0-2

test: check
	$(BIN)/python -m pytest -n 2

# the same, and the plug-ins inside Avalanche, Lightning, Transformers and Stable-Baselines3, and sweeps on Ray and SLURM
test-all: check .venv-all/ready
	.venv-all/bin/python -m pytest -n 2

# the files of `make dist`, installed in an environment of their own
test-dist: dist
	$(BIN)/python -m pytest -m release

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/bitfreeze data get mnist
	$(BIN)/python benchmarks/run.py

# from the runs in BITFREEZE_RUNS
results: .venv/ready
	$(BIN)/python results/collect.py
	$(BIN)/python docs/fill_results.py

# the site, in site/index.html
docs: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# wheel and source archive, in dist/
dist: .venv/ready
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,lab,atari]"
	touch $@

.venv-all/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-all
	.venv-all/bin/python -m pip install --quiet --constraint constraints.txt \
		--editable ".[dev,lab,atari,avalanche,lightning,transformers,sb3,ray,slurm]"
	touch $@

clean:
	rm -rf .venv .venv-all dist
