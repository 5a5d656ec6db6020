"""What is shipped: a light import, a core without extras, and every file in the wheel."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mlflow_perf

ROOT = Path(__file__).parents[1]


def run_python(code: str) -> str:
    """Return what a fresh interpreter prints."""
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=90
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_us_imports_nothing_heavy() -> None:
    """`import mlflow_perf` loads neither MLflow nor any other package of a third party."""
    heavy = {"mlflow", "psutil", "pandas", "numpy", "jinja2", "click", "azure", "parsl"}
    code = "import sys, mlflow_perf; print(*{m.split('.')[0] for m in sys.modules})"
    assert not heavy & set(run_python(code).split())


def test_the_core_lives_without_the_extras() -> None:
    """Sampling, summing up, documents and operations need no optional package, nor pandas."""
    missing = [
        "azure", "parsl", "lightgbm", "pandas", "numpy", "matplotlib", "pyarrow", "proxystore",
        "prometheus_client", "opentelemetry", "pynvml", "nixl", "mlflow",
    ]  # fmt: skip
    code = f"""
import sys
for name in {missing}:
    sys.modules[name] = None
import mlflow_perf
collector = mlflow_perf.PerformanceMetricsCollector(interval=0.05)
collector.start()
collector.finalize()
operations = mlflow_perf.OperationMetrics()
operations.add_time("x", None, 1.0)
print(len(collector.perf_reports), operations.aggregate_times()["x"].count)
"""
    assert run_python(code) == "2 1"


def test_public_names_are_sorted_and_there() -> None:
    """`__all__` is sorted, and each name in it can be had."""
    names = [name for name in mlflow_perf.__all__ if name != "__version__"]
    assert names == sorted(names)
    assert all(getattr(mlflow_perf, name) is not None for name in mlflow_perf.__all__)
    assert set(names) <= set(dir(mlflow_perf))
    with pytest.raises(AttributeError, match="nothing"):
        _ = mlflow_perf.nothing


@pytest.mark.e2e
def test_the_wheel_has_every_file(tmp_path: Path) -> None:
    """Templates, SQL, scripts and the type marker are in the wheel as they are in the source."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, timeout=110)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src" / "common"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "mlflow_perf").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".md")
    }
    assert {*wanted, "mlflow_perf.pth"} <= packed


# What is imported under another name than it is installed by.
DISTRIBUTIONS = {
    "azure": "azure-ai-ml",
    "opentelemetry": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
    "pynvml": "nvidia-ml-py",
}  # fmt: skip
# What MLflow itself needs, and so brings.
OF_MLFLOW = {
    "alembic", "flask", "markupsafe", "numpy", "pandas",
    "pyarrow", "sqlalchemy", "werkzeug", "yaml",
}  # fmt: skip
# What no index has for every machine: named in the message that misses it.
BY_HAND = {"nixl", "amdsmi"}


def imported(path: Path) -> set[str]:
    """Return the top-level names that a file imports, wherever in it."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    names = set()
    for node in tree:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).split(".")[0])
    return names


@pytest.mark.parametrize("folder", ["src/common/mlflow_perf", "components"])
def test_every_package_that_is_imported_is_declared(folder: str) -> None:
    """Every third-party package that the code imports is declared in `pyproject.toml`."""
    own = {path.stem for path in (ROOT / folder).rglob("*.py")} | {"mlflow_perf"}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = {name for path in (ROOT / folder).rglob("*.py") for name in imported(path)}
    third = found - set(sys.stdlib_module_names) - own - OF_MLFLOW - BY_HAND
    assert {n for n in third if f'"{DISTRIBUTIONS.get(n, n)}' not in project} == set()


def test_the_changelog_tells_of_this_version() -> None:
    """The version is defined in one place; the changelog has a section for it, with its date."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(
        rf"^## \[{re.escape(mlflow_perf.__version__)}\] - \d{{4}}-\d\d-\d\d$", text, re.M
    )
