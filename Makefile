# `make demo` and `make test` do all their own setup into $(VENV); finished steps are skipped.
# `make test PROCESSOR=zen5` runs the tests as on that core of machine/microarchitecture.py;
# PROCESSOR=unknown as on one that nobody has tuned anything for.
PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# Each process that the tests start would compile all of the package's source again.
unexport PYTHONDONTWRITEBYTECODE
PLANS = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m plans \
  $$(grep -rl --include='test_*.py' mark.plans tests)
PRETENDED := plans-zen5 plans-zen4 plans-golden_cove plans-raptor_lake plans-unknown

.PHONY: demo test plans $(PRETENDED) plans-avx2 lint docs release-check setup clean

demo: setup
	$(BIN)/sparsejit calibrate
	$(BIN)/sparsejit demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal $(if $(PROCESSOR),--processor $(PROCESSOR))

# Whatever plans, prices or explains, as on each processor that has data, and without AVX-512: each
# in a process of its own, so many at once as there are cores.
plans: setup
	$(MAKE) --keep-going --output-sync --jobs=$$(nproc) $(PRETENDED) plans-avx2

$(PRETENDED): plans-%: setup
	$(PLANS) --processor $*

plans-avx2: setup
	SPARSEJIT_MAX_ISA=avx2 $(PLANS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

# Pages that can be read without a network: nothing in them is fetched from elsewhere.
docs: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@! grep -rnE '(<script|<link|<img|<iframe)[^>]*(src|href)="(https?:)?//|class="mermaid"' \
	  build/site --include='*.html'
	@echo "open build/site/index.html; its search needs a server: python3 -m http.server -d build/site"

# The wheel and the sdist in bare environments, by every Python that is there: some minutes.
release-check:
	$(PYTHON) tests/release_check.py

setup: $(STAMPS)/peachpy

$(STAMPS)/docs: $(STAMPS)/project
	$(BIN)/pip install --quiet --config-settings editable_mode=compat --editable '.[docs]'
	touch $@

$(STAMPS)/peachpy: $(STAMPS)/project
	$(BIN)/python -m sparsejit.install_peachpy
	touch $@

# torch goes first and by its exact version, so that no dependency can pull in another build.
$(STAMPS)/project: pyproject.toml $(STAMPS)/torch
	$(BIN)/pip install --quiet --config-settings editable_mode=compat --editable '.[torch,voice,bench,dev]'
	touch $@

$(STAMPS)/torch: | $(STAMPS)/venv
	$(BIN)/pip install --quiet torch==2.13.0
	touch $@

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: $(PYTHON) is missing or older than 3.10; name a newer one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make virtual environments; run: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	touch $@

clean:
	rm -rf $(VENV) build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
