"""Run the suite on every Python and with the lowest packages that `pyproject.toml` allows.

    $ make compat                    # everything; or one: nox -s "tests-3.13"

Each session has an environment of its own. Only the fast tests run, unless arguments say otherwise:
`nox -s tests-3.12 -- tests` runs all.
"""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|venv"
nox.options.reuse_existing_virtualenvs = True

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
FAST = ("-m", "not e2e and not load", "-q")


def _test(session: nox.Session) -> None:
    session.env["MLFLOW_DISABLE_TELEMETRY"] = "true"
    # The suite of the checkout, the package of the environment.
    session.run("python", "-m", "pytest", *(session.posargs or FAST))


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The newest packages that can be had."""
    session.install("--editable", ".[dev]")
    _test(session)


@nox.session(python="3.11")
def azureml(session: nox.Session) -> None:
    """MLflow 3.15 beside azureml-mlflow, which caps it there."""
    session.install("--editable", ".[dev,azureml]", "mlflow==3.15.0")
    session.run(
        "python", "-c", "import azureml.mlflow, mlflow; assert mlflow.__version__ == '3.15.0'"
    )
    _test(session)


@nox.session(python="3.10")
def lowest(session: nox.Session) -> None:
    """The lowest version that `pyproject.toml` allows of each package that the core needs."""
    core = nox.project.load_toml("pyproject.toml")["project"]["dependencies"]
    pins = [pin.replace(">=", "==") for pin in core]
    session.install("--editable", ".[dev]")
    # By themselves and without fastmcp: the extra `mcp` asks for a newer rich than the core.
    session.install(*pins, "pip")
    session.run("python", "-m", "pip", "uninstall", "--yes", "fastmcp", "fastmcp-slim")
    _test(session)


@nox.session(python=PYTHONS)
def wheel(session: nox.Session) -> None:
    """The wheel by itself in an empty environment: no extra, no checkout."""
    folder = session.create_tmp()
    session.install("build", "twine")
    session.run("python", "-m", "build", "--outdir", folder, silent=True)
    built = [str(path) for path in Path(folder).glob("mlflow_perf-*")]
    session.run("python", "-m", "twine", "check", "--strict", *built)
    (made,) = (path for path in built if path.endswith(".whl"))
    session.install("--force-reinstall", "--no-deps", made)
    session.install(made)
    session.chdir(folder)
    session.env["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    session.env["MLFLOW_DISABLE_TELEMETRY"] = "true"
    session.run("mlflow-perf", "--version")
    session.run(
        "mlflow-perf", "run", "--name", "bare", "--", "python", "-c", "print(sum(range(10**7)))"
    )
    session.run("python", "-c", _BARE)


_BARE = """
import mlflow, mlflow_perf
with mlflow_perf.report("bare") as perf:
    sum(range(10**6))
run = mlflow.get_run(perf.run_id)
assert run.data.metrics["run_node_count"] == 1.0, run.data.metrics
assert mlflow_perf.load(perf.run_id).nodes[0].component == "bare"
"""
