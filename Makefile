# Two commands are enough: `make iot` and `make test`. Each sets up .venv on its first use and says so;
# later runs compare three time stamps and start at once.
#   ARGS="..."     is handed to the program that does the work:  make iot ARGS="--grid paper"
#   PYTHON=...     chooses the interpreter for set-up; default: the first python3 >= 3.11 found
#   PART=2/4       runs only this part of the tests: `make test-all` in quarters
#   WORKERS=N      processes that run the project's tests; most of these wait, so there are more than two cores need

.DEFAULT_GOAL := help
VENV    ?= .venv
PY      ?= $(VENV)/bin/python
STAMP   ?= $(VENV)/.set-up
WORKERS ?= 4
ARGS    ?=
PART    ?=
# The tests are collected once, by the worker that all others are forked from.
FORKED   = -o cloudbench_start=fork
# Tests that measure what they have set: beside few others, or the machine is busy and nothing can be judged.
# ARGS may leave none of them (exit status 5). If it names no tests, only the files with truths are collected: to collect
# the others takes longer than these tests.
TRUTHS   = $(PY) -m pytest $(LIMIT) $(SHOWN) -n 3 $(FORKED) $(if $(filter tests%,$(ARGS)),,$(HAVE_TRUTHS))
HAVE_TRUTHS = $$(grep -lrE 'truths|mark\.truth' tests --include='test_*.py')
# A test that takes longer hangs: it prints every thread's stack and fails by its name, in xdist's workers too. Not in
# pyproject.toml: suites run in this checkout, too, and theirs may take weeks.
ENDED_AFTER_S = 600
LIMIT    = -o faulthandler_timeout=$(ENDED_AFTER_S) -o faulthandler_exit_on_timeout=true
SHOWN    = --durations=10 $(if $(PART),--part $(PART))
# Neighbours stay with one worker as long as all have work: what the tests of a file share is made once.
TESTS    = $(PY) -m pytest $(LIMIT) $(SHOWN) -n $(WORKERS) --dist worksteal $(FORKED)
TYPED   := src $(wildcard suites tests benchmarks) $(wildcard tools/*.py)
export PYTHON

# An environment whose interpreter has gone, or which was made elsewhere, is set up again.
ifneq ($(STAMP),)
ifneq ($(and $(wildcard $(PY)),$(wildcard $(STAMP)),$(shell cat $(STAMP) 2>/dev/null)),$(CURDIR))
.PHONY: $(STAMP)
endif
$(STAMP): pyproject.toml constraints.txt tools/setup.sh
	@sh tools/setup.sh $(VENV) $(STAMP)
endif

.PHONY: iot test test-quick test-all testbed-quick testbed-all bench docs lint types clean help

iot: $(STAMP) ## measure an embedded provider with 50 agents: pytest suites/iot -n 50
	$(PY) -m pytest suites/iot -n 50 $(ARGS)

# mypy uses the core that the tests leave idle while one process collects them.
test: lint testbed-quick ## lint, types and the tests that are not slow (about six minutes on two cores)
	@$(MAKE) --no-print-directory -j2 types test-quick

test-quick: $(STAMP)
	$(TESTS) -m "not slow and not truth" $(ARGS)
	$(TRUTHS) -m "truth and not slow" $(ARGS) || [ $$? -eq 5 ]

test-all: ENDED_AFTER_S = 3600
# Slow tests wait more than others: for clients that stand still, and for what does not answer.
test-all: WORKERS = 5
test-all: lint types testbed-all ## lint, types, every test, and the quick ones again without docstrings as another user
	$(TESTS) --hypothesis-profile=thorough -m "not truth" $(ARGS)
	$(TRUTHS) --hypothesis-profile=thorough -m truth $(ARGS) || [ $$? -eq 5 ]
	PYTHONOPTIMIZE=2 sh tools/as_ordinary_user.sh $(TESTS) -p no:cacheprovider -m "not slow and not truth" $(ARGS)

# Sync clients that can be installed here; where they cannot, their tests skip and say why.
testbed-quick testbed-all: $(STAMP)
	@PY=$(PY) tools/testbed install --$(@:testbed-%=%) --may-fail

bench: $(STAMP) ## measure the project itself, into benchmarks/results.json
	$(PY) benchmarks/run.py $(ARGS)

docs: $(STAMP) ## the documents as a site, in build/site
	$(PY) -m mkdocs build --strict $(ARGS)

lint: $(STAMP) ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP) ## mypy --strict
	$(PY) -m mypy --strict $(TYPED)

clean: ## remove caches, builds and, if set-up made it, .venv; results stay
	rm -rf build dist .tox .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src suites tests tools benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	@if [ -e $(VENV)/.made-by-make ]; then echo "rm -rf $(VENV)"; rm -rf $(VENV); else rm -f $(VENV)/.set-up; fi

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile
	@echo '  ARGS="..." is handed on: make iot ARGS="--grid paper"'
