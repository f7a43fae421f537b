# Every target sets itself up: a fresh machine needs Python 3.11 (or newer) with venv, and make.
PYTHON ?= python3
BIN := .venv/bin

# versions of torch that make test-versions goes through: several GB each where pip has CUDA builds only
TORCH_VERSIONS := 2.6.0 2.9.1 2.13.0 2.15.0
LIBRARY_TESTS := tests/blip tests/fisher tests/likelihoods tests/model tests/test_*.py
CHEAP_LAB_TESTS := tests/lab/runs/test_checkpoint.py tests/lab/training tests/lab/test_devices.py

.PHONY: demo test test-all test-browser test-versions test-device test-dist torture check bench results docs dist clean

demo: .venv/ready
	$(BIN)/bitfreeze sweep digits5 --methods ft,blip,joint --seeds 0-2

test: check
	$(BIN)/python -m pytest -n 2

# the same, and the plug-ins inside Avalanche, Lightning, Transformers, PEFT and Stable-Baselines3, and sweeps on Ray and SLURM
test-all: check .venv-all/ready
	.venv-all/bin/python -m pytest -n 2

# the site, the report and its server in a real browser, with a checker of accessibility: needs chromium or Chrome, and npm
AXE := node_modules/axe-core/axe.min.js
test-browser: .venv/ready $(AXE)
	@for name in chromium chromium-browser google-chrome; do command -v $$name && break; done > /dev/null || \
		{ echo "make test-browser needs chromium or google-chrome; install one, such as by apt-get install chromium"; exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python -m pytest -n 2 tests/project/test_site.py tests/lab/results/test_report.py tests/lab/results/test_server.py

$(AXE):
	npm install --no-save --no-package-lock axe-core@4.14.1

# the library's tests, and cheap ones of the laboratory, with each version of torch
test-versions: $(TORCH_VERSIONS:%=.venv-torch-%/ready)
	set -e; for version in $(TORCH_VERSIONS); do \
		.venv-torch-$$version/bin/python -m pytest -n 2 $(LIBRARY_TESTS) $(CHEAP_LAB_TESTS); \
	done

# the device tests on a device of this machine: make test-device DEVICE=cuda
DEVICE ?= standin
test-device: .venv/ready
	BITFREEZE_TEST_DEVICE=$(DEVICE) $(BIN)/python -m pytest tests/devices

# hours of attacks; TORTURE="kills flips --minutes 5" for some of them, "--help" for all options
torture: .venv/ready
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m torture $(TORTURE)

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
	$(BIN)/python docs/build.py

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
		--editable ".[dev,lab,atari,avalanche,lightning,transformers,peft,sb3,ray,slurm]"
	touch $@

.venv-torch-%/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-torch-$*
	grep -v ^torch constraints.txt > .venv-torch-$*/constraints.txt
	.venv-torch-$*/bin/python -m pip install --quiet --constraint .venv-torch-$*/constraints.txt \
		torch==$* --editable ".[lab]" pytest pytest-xdist hypothesis pyyaml setuptools
	touch $@

clean:
	rm -rf .venv .venv-all .venv-torch-* dist
