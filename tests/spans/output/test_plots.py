"""Pictures of the answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex

from mlflow_perf import spans
from mlflow_perf.errors import MissingDependencyError, SpansError
from mlflow_perf.spans.output.plots import save


def test_plots_show_what_the_rows_hold(real: Path, tmp_path: Path) -> None:
    """The figures have the data, the marks and the legend; matplotlib's own state is left alone."""
    rows = spans.between(real, "invoked", "returned")
    figure = spans.plot_times(rows, "tasks")
    scatter, histogram, density = figure.axes
    assert len(scatter.lines[0].get_xdata()) == len(rows)
    labels = [text.get_text().split()[0] for text in histogram.get_legend().get_texts()]
    assert labels == ["mean", "median", "95%", "max"]
    assert density.images[0].get_array().sum() == pytest.approx(len(rows), rel=0.05)
    states = spans.plot_states(spans.state_counts(real), "states")
    _, labels = states.axes[0].get_legend_handles_labels()
    assert "parsl.monitoring.try/running" in labels
    colours = {artist.get_label(): to_hex(artist.get_facecolor()[0])
               for artist in states.axes[0].collections}  # fmt: skip
    assert colours["parsl.monitoring.try/exec_done"] == "#2ca02c"
    assert {"fail" in name for name, colour in colours.items() if colour == "#d62728"} == {True}
    running = spans.plot_concurrency(spans.concurrency(real), "running")
    for number, drawn in enumerate((figure, states, running)):
        assert save(drawn, tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")


def test_drawing_does_not_load_pyplot() -> None:
    """A program's own figures and backend are not touched: pyplot is not imported."""
    code = (
        "import sys; from mlflow_perf.spans import plot_concurrency as p;"
        "p([{'time_s': 0.0, 'spans': 1}, {'time_s': 1.0, 'spans': 0}], 't');"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    """No rows give no empty picture; a folder that is not there is named."""
    with pytest.raises(SpansError, match="nothing to draw"):
        spans.plot_times([], "tasks")
    figure = spans.plot_concurrency([{"time_s": 0.0, "spans": 1}], "one")
    with pytest.raises(SpansError, match="cannot be written"):
        save(figure, tmp_path / "none" / "x.png")
    with pytest.raises(SpansError, match="cannot be written"):
        save(figure, tmp_path / "x.xyz")


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("matplotlib", lambda folder: spans.plot_concurrency([{"time_s": 0.0, "spans": 1}], "x")),
        ("pyarrow", lambda folder: spans.to_parquet(folder / "hostile.sqlite3", folder / "out")),
    ],
)
def test_a_missing_package_names_the_extra(
    hostile: Path, tmp_path: Path, monkeypatch: Any, package: str, use: Any
) -> None:
    """A missing optional dependency is an error that says how to install it."""
    for name in [m for m in sys.modules if m.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r"mlflow-perf\[spans\]"):
        use(tmp_path)
