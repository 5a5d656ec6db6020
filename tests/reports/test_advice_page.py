"""The page of an advice."""

from __future__ import annotations

from mlflow_perf.analysis.learned_memory import SeenRun
from mlflow_perf.analysis.rightsize import RightSize
from mlflow_perf.reports.advice_page import build_plot, render_advice

SEEN = (
    SeenRun("first <b>", 500.0, 60.0, {"rows": 10.0}),
    SeenRun("killed", 0.0, 60.0, {"rows": 20.0}, failed_mb=700.0),
)


def test_each_run_is_a_dot_at_its_place() -> None:
    """The next run is drawn at the memory to ask for, a killed run at the memory that it had."""
    size = RightSize(1, 1000, 1, 0, seen=SEEN)
    plot = build_plot(size, {})
    assert plot is not None
    assert [(dot.x, dot.kind) for dot in plot.dots] == [
        (0.0, "fits"), (320.0, "killed"), (640.0, "next"),
    ]  # fmt: skip
    assert [dot.y for dot in plot.dots] == [109.1, 72.7, 18.2]
    by_rows = build_plot(RightSize(1, 1000, 1, 0, seen=SEEN, predictor="rows"), {"rows": 30.0})
    assert by_rows is not None
    assert (by_rows.across, by_rows.left, by_rows.right) == ("rows", "10", "30")


def test_without_any_peak_there_is_no_picture() -> None:
    """A component whose memory nobody measured has an advice all the same."""
    assert build_plot(RightSize(1, None, 1, 0, seen=SEEN), {}) is None
    assert build_plot(RightSize(1, 128, 1, 0), {}) is None


def test_names_cannot_act_on_the_page() -> None:
    """What a run is called is escaped."""
    size = RightSize(1, 1000, 1, 0, seen=SEEN, had={"cpus": 4.0})
    page = render_advice({"<script>": size}, inputs={}, lines={"<script>": [("Slurm", "#SBATCH")]})
    assert "<script>" not in page.partition("</head>")[2]
    assert "first &lt;b&gt;" in page
    assert "#SBATCH" in page
