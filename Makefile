# Each target works on a fresh machine that has Python >= 3.10 and make: what it needs it sets up itself.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
BENCH_STAMP := $(VENV)/.installed-bench
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export MLFLOW_DISABLE_TELEMETRY := true
export UV_LINK_MODE ?= copy

.PHONY: setup demo ui test test-launchers test-frameworks lint hooks metrics compat bench docs clean

setup: $(STAMP)

# uv resolves and installs several times faster than pip, which takes over where uv cannot be had or
# cannot reach the packages (it does not read pip's configuration).
install = $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python $(1) || $(PIP) $(1)

# pip before 24 gives up on what the extras ask of opentelemetry together.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "mlflow-perf needs Python 3.10 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=24'
	$(PIP) uv || true

# NIXL asks for PyTorch and CUDA, of which it needs neither to move data between two CPUs.
$(STAMP): setup.py pyproject.toml | $(BIN)/python
	$(call install,--editable '.[dev]')
	$(PIP) --no-deps nixl==1.5.1 nixl-cu12==1.5.1 || echo "no NIXL for this machine: its tests are skipped"
	touch $(STAMP) $(DEMO_STAMP)

# The demo needs less than development does, and so is there sooner.
$(DEMO_STAMP): setup.py pyproject.toml | $(BIN)/python
	@echo "Installing what the demo needs into $(VENV): a few minutes, once."
	$(call install,--editable '.[demo]')
	touch $(DEMO_STAMP)

demo: $(DEMO_STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mlflow-perf pipeline run pipelines/lightgbm_training.py --to demo --monitor $(ARGS)
	@echo "next: make ui"

# One worker and no job runner: MLflow's default of four workers takes minutes to start on two busy cores.
ui: $(DEMO_STAMP)
	@test -f demo/mlflow.db || { echo "Nothing is logged yet: run make demo first."; exit 1; }
	@echo "Starting MLflow on what the demo logged. Once it says that it is running, open"
	@echo "  http://127.0.0.1:5000       the MLflow UI"
	@echo "  http://127.0.0.1:5000/perf  the performance of all runs        (Ctrl-C ends it)"
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false $(BIN)/mlflow server --workers 1 --app-name mlflow-perf --backend-store-uri sqlite:///demo/mlflow.db --artifacts-destination demo/artifacts --port 5000

# Tests use real signals, servers and launches, on a machine that others load too. A test that fails runs again, up
# to twice, and what still fails runs once more by itself, with servers and folders of its own. A fault of the
# code fails each time. The last lines of the output count and name every test that needed a second run.
# Three processes, because half of the time is spent waiting for servers, launchers and browsers; the tests of a
# file stay in one process and share its servers.
PYTEST = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest
test: setup
	$(PYTEST) -n 3 --dist loadfile --reruns 2 --reruns-delay 5 $(ARGS) \
		|| { test $$? -eq 1 && $(PYTEST) --last-failed --last-failed-no-failures none --reruns 1 --reruns-delay 5 $(ARGS); }

# torchrun and Ray, too large for the environment of development, start real jobs from one of their own.
test-launchers: setup
	test -x $(VENV)-launchers/bin/python || $(PYTHON) -m venv $(VENV)-launchers
	$(VENV)-launchers/bin/python -m pip install --quiet 'torch>=2.4' 'ray>=2.30' 'distributed>=2024.1'
	PATH="$(CURDIR)/$(BIN):$$PATH" LAUNCHERS_PYTHON="$(CURDIR)/$(VENV)-launchers/bin/python" $(BIN)/python -m pytest tests/test_real_launchers.py tests/pipelines/test_launch.py $(ARGS)

# PyTorch, Lightning, transformers and the boosting libraries, too large for the environment of development.
test-frameworks:
	test -x $(VENV)-frameworks/bin/python || $(PYTHON) -m venv $(VENV)-frameworks
	$(VENV)-frameworks/bin/python -m pip install --quiet --editable '.[lightgbm,lightning,test,torch,transformers,xgboost]' optuna scikit-learn
	PATH="$(CURDIR)/$(VENV)-frameworks/bin:$$PATH" $(VENV)-frameworks/bin/python -m pytest tests/frameworks tests/session/test_launch_styles.py $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What `git commit` checks from then on: ruff on the files of the commit, mypy on the package.
hooks: setup
	$(BIN)/pre-commit install

# How the architecture stands: folders, imports, sizes, mirrored tests.
metrics:
	$(PYTHON) tools/house.py

docs: $(BIN)/python
	$(call install,--editable '.[docs]')
	$(BIN)/mkdocs build --strict

# The suite on every Python that can be had, the lowest packages, MLflow 3.15, and the wheel alone.
compat: setup
	$(call install,nox uv)
	$(BIN)/nox $(ARGS)

# The peers are installed too, so that they run beside ours.
$(BENCH_STAMP): $(STAMP)
	$(call install,--editable '.[bench]')
	touch $(BENCH_STAMP)

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-frameworks $(VENV)-launchers demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
