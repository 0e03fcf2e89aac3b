# Everything goes into .venv; a second run of a target does only what is new. `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# cuda12 or cuda13 by what the driver supports, else none. Override: make install EXTRA=cuda12
DRIVER_CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[A-Za-z ]*Version: *\([0-9]*\).*/\1/p' | head -n 1)
EXTRA ?= $(if $(DRIVER_CUDA),$(shell if [ $(DRIVER_CUDA) -ge 13 ]; then echo cuda13; \
           elif [ $(DRIVER_CUDA) -eq 12 ]; then echo cuda12; else echo none; fi),none)

EXTRAS_none :=
EXTRAS_cuda12 := [cuda12]
EXTRAS_cuda13 := [cuda13]
# Beside cuda12 no CUDA 13 compiler may be installed: CuPy would take its headers.
DEV_none := [dev]
DEV_cuda12 := [book,lint,test,cuda12]
DEV_cuda13 := [dev,cuda13]

ifeq ($(filter none cuda12 cuda13,$(EXTRA)),)
$(error EXTRA is $(EXTRA); it can be none, cuda12 or cuda13)
endif

INSTALLED := $(VENV)/.installed-$(EXTRA)
DEV_INSTALLED := $(VENV)/.dev-installed-$(EXTRA)

ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 TINY_VLLM_WORKERS=1
PYTEST_ARGS ?=
CUDA_SOURCES = find kernels chapters tiny_vllm tests \
               \( -name '*.cu' -o -name '*.cuh' -o -name '*.h' -o -name '*.cpp' \) -print0

# A notebook writes the reader's files into TINY_VLLM_WORK, so each run of a set gets a folder of its own.
NBVAL := $(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile --nbval --nbval-current-env --nbval-cell-timeout 120
define run_notebooks
rm -rf build/work-$(1) && mkdir -p build/work-$(1)
TINY_VLLM_WORK=$(CURDIR)/build/work-$(1) $(NBVAL) $(2)
endef

.PHONY: help install dev demo lab test test-notebooks test-gpu deep notebooks book lint format clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

install: $(INSTALLED) ## install tiny-vllm into .venv, with CuPy where the driver allows it

dev: $(DEV_INSTALLED) ## install what tests and linters need besides

demo: $(INSTALLED) ## fetch a small model and stream an answer, with a GPU or without one
	$(BIN)/tiny-vllm generate --chat --temperature 0 "What is the capital of Japan?"

lab: $(INSTALLED) ## open JupyterLab, where a notebook's own copy runs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[notebooks]'
	$(BIN)/jupyter lab

test: $(DEV_INSTALLED) ## run the tests on the emulator, two at a time
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

test-notebooks: $(DEV_INSTALLED) ## run every notebook as it is committed, and with the exercises solved
	$(BIN)/tiny-vllm fetch
	$(call run_notebooks,committed,notebooks)
	$(BIN)/python -m tools.build_notebooks --solved build/solved
	$(call run_notebooks,solved,build/solved)

test-gpu: $(DEV_INSTALLED) ## run the tests on this machine's NVIDIA GPU
	$(BIN)/python -m pytest --device cuda $(PYTEST_ARGS)

deep: $(DEV_INSTALLED) ## run every test, those that take minutes too
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile -m '' $(PYTEST_ARGS)

notebooks: $(DEV_INSTALLED) ## build notebooks/ and the figures again from the chapters' pages
	$(BIN)/python -m tools.build_notebooks

book: $(DEV_INSTALLED) ## build the book into build/book, from notebooks that it runs first
	rm -rf docs/lessons build/book
	$(BIN)/python -m tools.build_notebooks --executed docs/lessons
	$(BIN)/python -m sphinx -W --keep-going -q docs build/book

lint: $(DEV_INSTALLED) ## check style and types: ruff, mypy, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(CUDA_SOURCES) | xargs -0 $(BIN)/clang-format --dry-run -Werror && echo "clang-format: nothing to change"

format: $(DEV_INSTALLED) ## let ruff and clang-format rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@$(CUDA_SOURCES) | xargs -0 $(BIN)/clang-format -i

clean: ## remove .venv, builds and tool caches; work/ and fetched models stay
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "$$($(PYTHON) --version 2>&1): tiny-vllm needs Python 3.10 or newer; name one: make PYTHON=python3.11 install"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "Python's venv or ensurepip is missing; on Debian and Ubuntu: sudo apt install python3-venv"; exit 2; }

$(INSTALLED): pyproject.toml | $(BIN)/pip
	@echo "GPU extra: $(EXTRA)$(if $(DRIVER_CUDA), (the driver supports CUDA $(DRIVER_CUDA)),; no NVIDIA driver found)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.$(EXTRAS_$(EXTRA))'
	@touch $@

$(DEV_INSTALLED): pyproject.toml | $(BIN)/pip
	@echo "GPU extra: $(EXTRA)$(if $(DRIVER_CUDA), (the driver supports CUDA $(DRIVER_CUDA)),; no NVIDIA driver found)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.$(DEV_$(EXTRA))'
	@touch $@ $(INSTALLED)
