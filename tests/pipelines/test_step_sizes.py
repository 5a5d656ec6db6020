"""What steps ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlflow_perf.analysis.learned_memory import SeenRun
from mlflow_perf.errors import PipelineError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.pipelines import step_sizes
from mlflow_perf.pipelines.graph import Graph, Step
from mlflow_perf.pipelines.step_sizes import StepSize, choose_sizes, learn_sizes, read_sizes
from mlflow_perf.tracking.perf_run import PerfRun

GRAPH = Graph(
    "flow",
    "flow",
    "flow",
    {
        "small": Step("small", "fit", "", None, values={"rows": 2000, "name": "x"}),
        "big": Step("big", "fit", "", None, values={"rows": 30000}),
        "other": Step("other", "never_run", "", None),
    },
)


def _run(rows: float) -> PerfRun:
    metrics = {"duration_sec": 60.0, "job_max_mem_mb": 100.0 + rows / 10, "job_cpu_avg_cores": 1.0}
    return PerfRun(
        f"{rows:g}", component="fit", status="FINISHED", metrics=metrics, params={"rows": f"{rows}"}
    )


def test_each_step_is_sized_by_its_own_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of one component differ in their rows; a component without a past is unknown."""
    past = [_run(1000.0 * (5 * i % 13)) for i in range(1, 13)]
    monkeypatch.setattr(
        step_sizes, "find_runs", lambda component="", **_: past if component == "fit" else []
    )
    sizes = learn_sizes(GRAPH)
    assert 300 <= (sizes["small"].memory_mb or 0) < 700
    assert 3100 <= (sizes["big"].memory_mb or 0) < 4500
    assert sizes["other"].memory_mb is None
    assert sizes["small"].inputs == {"rows": 2000.0}
    assert choose_sizes("learned", GRAPH, budget_mb=500.0)["small"].budget_mb == 500.0


def test_a_step_that_was_too_short_to_measure_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of its machine is no size of it."""
    metrics = {"duration_sec": 0.1, "max_t_mem_percent": 60.0}
    document = PerfDocument({0: NodeDocument(summary=metrics, node={"mem_total_mb": 8000})})
    run = PerfRun("short", component="fit", status="FINISHED", metrics=metrics, document=document)
    monkeypatch.setattr(step_sizes, "find_runs", lambda *_, **__: [run])
    size = learn_sizes(GRAPH)["small"]
    assert (size.memory_mb, size.method) == (None, "no past run tells its own memory")


def test_a_step_that_reports_under_another_name_has_a_past(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`report()` names a component after its script; the runner's tag has the pipeline's name."""
    past = [_run(1000.0 * i) for i in range(1, 13)]

    def find(component: str = "", *, filter_string: str = "", **_: object) -> list[PerfRun]:
        return past if "tags.`mlflow_perf.step_component` = 'fit'" in filter_string else []

    monkeypatch.setattr(step_sizes, "find_runs", find)
    sizes = learn_sizes(GRAPH)
    assert 300 <= (sizes["small"].memory_mb or 0) < 700
    assert len(sizes["small"].seen) == 12
    monkeypatch.setattr(step_sizes, "find_runs", lambda *_, **__: past)  # found both ways
    assert len(learn_sizes(GRAPH)["small"].seen) == 12


def test_a_size_grows_above_what_was_too_little() -> None:
    """With a past by the sizer, without one by a factor of two."""
    assert StepSize(memory_mb=100).grow(100.0) == 200
    seen = tuple(SeenRun(str(i), 1000.0 + i, 60.0) for i in range(20))
    assert StepSize(memory_mb=100, seen=seen).grow(100.0) >= 1019
    assert StepSize(memory_mb=5000, seen=seen).grow(5000.0) > 5000


@pytest.mark.parametrize(
    "text",
    [
        "fit: {memory_mb: 900, cpus: 2}\nother: {memory_mb: 300.2}\n",
        '{"components": {"fit": {"memory_mb": 900, "cpus": 2}, "other": {"memory_mb": 301}}}',
        # A store has the components of other pipelines, too.
        "components: {fit: {memory_mb: 900, cpus: 2}, never_run: {memory_mb: 301}, x: {cpus: 5}}",
    ],
)
def test_a_file_names_steps_or_components(tmp_path: Path, text: str) -> None:
    """In YAML, or as `advise --json` prints it."""
    path = tmp_path / "sizes.yml"
    path.write_text(text)
    sizes = read_sizes(path, GRAPH)
    assert [(s.memory_mb, s.cpus) for s in sizes.values()] == [(900, 2), (900, 2), (301, None)]


def test_a_file_may_name_the_steps_of_other_pipelines_of_its_script(tmp_path: Path) -> None:
    """One file has the sizes of all jobs that a script submits."""
    path = tmp_path / "sizes.yml"
    path.write_text("fit: {memory_mb: 900}\ntidy: {memory_mb: 300}\n")
    with pytest.raises(PipelineError, match="names 'tidy', which is no step"):
        choose_sizes(str(path), GRAPH, budget_mb=None)
    steps = {"tidy": Step("tidy", "tidy", "", None)}
    beside = [GRAPH, replace(GRAPH, steps=steps)]
    sizes = choose_sizes(str(path), GRAPH, budget_mb=None, beside=beside)
    assert [size.memory_mb for size in sizes.values()] == [900, 900, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"components": {"fti": {"memory_mb": 1}}}', "names 'fti', which is no step"),
        ("fit: {memory: 60}", "fit has neither memory_mb nor cpus .there is: memory."),
        ("fti: {memory_mb: 1}", "names 'fti', which is no step .did you mean 'fit'"),
        ("fit: {memory_mb: -1}", "memory_mb is -1, but must be a number above zero"),
        ("fit: {memory_mb: .nan}", "memory_mb is nan"),
        ("fit: 900", "must name steps, each with memory_mb"),
        ("fit: {a\n  b: [", "line . is neither YAML nor JSON|line 2"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """One sentence names the file and its fault."""
    path = tmp_path / "sizes.yml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=message):
        read_sizes(path, GRAPH)
    with pytest.raises(PipelineError, match="cannot be read: No such file"):
        choose_sizes(str(tmp_path / "none.yml"), GRAPH, budget_mb=None)
