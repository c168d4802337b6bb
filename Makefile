# Everything is done in .venv, which any target makes first: a fresh machine needs Python 3.11 or newer and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-long test-quick test-gpu test-all mutate mutants fuzz chaos soak test-sites check docs docs-serve release format bench lock clean

demo: $(READY)  ## the main job, start to end, in about two minutes
	$(BIN)/clew demo --output demo

test: $(READY)  ## unit, distributed and documentation tests; those of sites where their software is installed
	tools/run-tests -m "not long" $(PYTEST)

test-long: $(READY)  ## the tests that `make test` leaves out because each takes long; CI runs both
	tools/run-tests -m long $(PYTEST)

test-quick: $(READY)  ## what runs within the test process, for the inner loop: no processes, no servers
	$(BIN)/python -m pytest -p tests.quick -m "not slow and not long" -n 2 --dist worksteal $(PYTEST)

test-gpu: $(READY)  ## tests of NVIDIA GPUs, with NCCL on two and four of them; those that need more than there are are skipped
	$(BIN)/python -m pytest -m gpu -rs $(PYTEST)

test-all: $(READY)  ## everything, once a week: long tests, real sites, ordinary processes, storms, a short soak (hours)
	tools/sites-install browser database jupyter s3 xrootd rucio slurm condor images
	CLEW_CHAOS=1 CLEW_TEST_SITES=1 CLEW_TEST_FORK=none tools/run-tests -p tests.allowed_skips $(PYTEST)
	$(BIN)/python -m tests.chaos --minutes 10
	$(BIN)/python benchmarks/soak.py --minutes 2

mutate: $(READY)  ## plant known bugs in a copy of the source: do the tests notice? make mutate MUTATE='rules sampler'
	$(BIN)/python -m tests.mutation $(MUTATE)

mutants: $(READY)  ## plant small faults at random: the share that tests notice, by package: make mutants MUTANTS='--seed 2 rules'
	$(BIN)/python -m tests.mutation.random_mutants $(MUTANTS)

fuzz: $(READY)  ## damaged and hostile inputs for every reader, by hand: make fuzz FUZZ='--inputs 100000 --workers 16'
	$(BIN)/python -m tests.fuzz $(FUZZ)

chaos: $(READY)  ## storms of faults (kill -9, full disk, flipped bytes, ...) for ten minutes: make chaos CHAOS='--seed 7'
	$(BIN)/python -m tests.chaos $(CHAOS)

soak: $(READY)  ## an hour of mixed load on each database: make soak SOAK='--only sqlite --minutes 10 --json soak.json'
	$(BIN)/python benchmarks/soak.py $(SOAK)

test-sites: $(READY)  ## against real Slurm, HTCondor, S3, XRootD, Rucio and images, which are installed first (Debian and PyPI)
	tools/sites-install s3 xrootd rucio slurm condor images onnxruntime
	CLEW_TEST_SITES=1 $(BIN)/python -m pytest tests/sites

check: $(READY)  ## style, types, layers, known holes of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/audit.py
	$(BIN)/python -m pytest tests/test_layers.py

docs: $(READY)  ## the site, into docs/_build/html: without a network, and without a warning
	$(BIN)/python -m sphinx -n -W --keep-going -q -b html docs docs/_build/html

docs-serve: docs  ## the site at http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

release: $(READY)  ## wheel and sdist in dist/, checked, installed in a fresh environment, with the demo run there
	$(BIN)/python tools/release.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## every benchmark, with the rivals they need; BENCH=--quick for a short look
	$(BIN)/python benchmarks/run.py $(BENCH)

# torch comes first and by pip: with its version settled, nothing after it asks for another build
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "clew needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

lock: $(READY)  ## write requirements.lock anew from what .venv holds (without rivals that `make bench` installed)
	$(BIN)/python tools/lock.py > requirements.lock.new
	mv requirements.lock.new requirements.lock
	touch $(READY)

clean:
	rm -rf .venv .venv-rucio .venv-condor .venv-onnxruntime .venv-jupyter demo docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
