# Two commands: `make test` (lint, types, tests) and `make demo` (one script, three runs, one table).
# Each makes its own virtual environment once; a stamp file inside it says that the installation is up to date.

PYTHON ?= python3
VENV ?= .venv
DEMO_VENV ?= .venv-demo
XLA_VENV ?= .venv-xla
TORCH ?= torch==2.13.0

.PHONY: test lint demo conformance bench test-xla clean

test: lint
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

demo: $(DEMO_VENV)/.installed
	$(DEMO_VENV)/bin/python examples/compare_runs.py

conformance: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -m conformance

bench: $(VENV)/.installed
	$(VENV)/bin/python benchmarks/overhead.py
	$(VENV)/bin/python benchmarks/startup.py

# XLA devices on the CPU, with torch 2.9 and torch_xla 2.9 (0.9 GB to download, and a C compiler; see tests/xla).
test-xla: $(XLA_VENV)/.installed
	$(XLA_VENV)/bin/python -m pytest tests/xla

clean:
	rm -rf $(VENV) $(DEMO_VENV) $(XLA_VENV)

# torch goes first and alone: where a CPU build is offered beside the index, the pinned release picks it up, whereas
# resolving torch along with everything else may take the CUDA build and gigabytes of libraries with it.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt '$(TORCH)'
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[dev,examples,frameworks]'
	touch $@

$(DEMO_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install --quiet -c constraints.txt '$(TORCH)'
	$(DEMO_VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[examples]'
	touch $@

$(XLA_VENV)/.installed: pyproject.toml tests/xla/requirements.txt tests/xla/hollow_cuda.py
	$(PYTHON) -m venv $(XLA_VENV)
	$(XLA_VENV)/bin/python -m pip install --quiet --no-deps -r tests/xla/requirements.txt
	$(XLA_VENV)/bin/python tests/xla/hollow_cuda.py
	$(XLA_VENV)/bin/python -m pip install --quiet --no-deps -e .
	touch $@
