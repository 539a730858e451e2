# Two commands: `make test` (lint, types, tests) and `make demo` (one script, three runs, one table).
# Each makes its own virtual environment once; a stamp file inside it says that the installation is up to date.

PYTHON ?= python3
VENV ?= .venv
DEMO_VENV ?= .venv-demo
FRAMEWORKS_VENV ?= .venv-frameworks
CATALYST_VENV ?= .venv-catalyst
XLA_VENV ?= .venv-xla
TORCH ?= torch==2.13.0

.PHONY: test test-frameworks lint demo conformance bench test-xla clean

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
	$(VENV)/bin/python benchmarks/memory.py
	$(VENV)/bin/python benchmarks/startup.py

# Whole programs of many frameworks on 2 and 3 ranks, and the table of docs/frameworks.md made from what they record.
test-frameworks: $(FRAMEWORKS_VENV)/.installed $(CATALYST_VENV)/.installed
	rm -rf build/frameworks && mkdir -p build/frameworks
	$(FRAMEWORKS_VENV)/bin/python -m pytest -m frameworks tests/test_frameworks.py -n 2 --dist loadgroup \
		--junit-xml=build/frameworks/most.xml
	$(CATALYST_VENV)/bin/python -m pytest -m frameworks tests/test_frameworks.py -n 2 --dist loadgroup -k catalyst \
		--junit-xml=build/frameworks/catalyst.xml
	$(FRAMEWORKS_VENV)/bin/python tests/frameworks/table.py build/frameworks/most.xml build/frameworks/catalyst.xml

# XLA devices on the CPU, with torch 2.9 and torch_xla 2.9 (0.9 GB to download, and a C compiler; see tests/xla).
test-xla: $(XLA_VENV)/.installed
	$(XLA_VENV)/bin/python -m pytest tests/xla

clean:
	rm -rf $(VENV) $(DEMO_VENV) $(XLA_VENV) $(FRAMEWORKS_VENV) $(CATALYST_VENV) build

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

$(FRAMEWORKS_VENV)/.installed: pyproject.toml constraints.txt constraints-frameworks.txt tests/frameworks/torchvision_on_cpu.py
	$(PYTHON) -m venv $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet -c constraints.txt '$(TORCH)'
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet -c constraints.txt -c constraints-frameworks.txt \
		-e '.[dev,examples,frameworks-all]'
	cp tests/frameworks/torchvision_on_cpu.py $(FRAMEWORKS_VENV)/lib/python3*/site-packages/
	echo 'import torchvision_on_cpu' > $$(echo $(FRAMEWORKS_VENV)/lib/python3*/site-packages)/torchvision_on_cpu.pth
	touch $@

$(CATALYST_VENV)/.installed: pyproject.toml constraints.txt tests/frameworks/catalyst.txt
	$(PYTHON) -m venv $(CATALYST_VENV)
	$(CATALYST_VENV)/bin/python -m pip install --quiet 'pip<24.1'
	$(CATALYST_VENV)/bin/python -m pip install --quiet -c constraints.txt '$(TORCH)'
	$(CATALYST_VENV)/bin/python -m pip install --quiet --no-deps -r tests/frameworks/catalyst.txt
	$(CATALYST_VENV)/bin/python -m pip install --quiet --no-deps -e .
	touch $@

$(XLA_VENV)/.installed: pyproject.toml tests/xla/requirements.txt tests/xla/hollow_cuda.py
	$(PYTHON) -m venv $(XLA_VENV)
	$(XLA_VENV)/bin/python -m pip install --quiet --no-deps -r tests/xla/requirements.txt
	$(XLA_VENV)/bin/python tests/xla/hollow_cuda.py
	$(XLA_VENV)/bin/python -m pip install --quiet --no-deps -e .
	touch $@
