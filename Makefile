# Two commands are all a fresh machine needs: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests spend their time on compiling. The library compiles its programs with the first option; here the tests' own have it too.
# With the second LLVM compiles a program in one piece and not in many at once, which is less work for the two cores.
OPTIONS := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
# A jaxlib that does not know one of them (0.11) ends the process: then there are none.
QUICKLY = $(shell XLA_FLAGS="$(OPTIONS)" $(BIN)/python -c 'import jax; jax.numpy.zeros(1)' > /dev/null 2>&1 && echo "$(OPTIONS)")
PYTEST = XLA_FLAGS="$(XLA_FLAGS) $(QUICKLY)" $(BIN)/python -m pytest -n 2 --dist worksteal --durations 10
MECHANICS := tests/unit tests/contract
LAWS := tests/statistical tests/property tests/interop

.PHONY: help install demo test test-full unit laws everywhere lint types bench clean
help:
	@echo "make demo | test | unit | laws | test-full | everywhere | lint | types | bench | install | clean"

install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ogradient needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make install PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV) (a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: install
	@$(BIN)/ogradient run synthetic --chains 200 --out results

# All in one go, so that neither core waits for the other at the end of a part.
test: install
	$(PYTEST) -m "not slow"

unit: install
	$(PYTEST) -m "not slow" $(MECHANICS)

laws: install
	$(PYTEST) -m "not slow" $(LAWS)

test-full: install
	$(PYTEST)

everywhere:
	benchmarks/everywhere.sh

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

bench: install
	@$(BIN)/ogradient bench

clean:
	rm -rf $(VENV) results .pytest_cache .mypy_cache .ruff_cache .hypothesis
