"""The benchmark that runs real tasks under a memory limit: its workflow and its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import _real_replay
from benchmarks._real_replay import PEAKS_MB, PRESET_MB, SECONDS, replay_real, write_workflow

from mlflow_perf.pipelines.loading import load_job
from mlflow_perf.pipelines.read_graph import read_graph
from mlflow_perf.pipelines.step_sizes import read_sizes


@pytest.mark.parametrize("hungry", [False, True])
def test_the_workflow_is_nine_tasks_of_three_components(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hungry: bool
) -> None:
    """All tasks fit their presets; with HUNGRY one needs 160 MB more than its component did."""
    monkeypatch.setenv("HUNGRY", "1" if hungry else "")
    write_workflow(tmp_path)
    job, path = load_job(str(tmp_path / "flow.py"), {})
    graph = read_graph(job, source=path)
    wanted = {
        f"{name}_{i}": f"python eat.py {mb + 2 * i + 160 * (hungry and (name, i) == ('medium', 2))}"
        for name, mb in PEAKS_MB.items()
        for i in range(3)
    }
    assert {n: s.command for n, s in graph.steps.items()} == {
        name: f"{command} {SECONDS}" for name, command in wanted.items()
    }
    sizes = read_sizes(tmp_path / "presets.json", graph)
    assert {(size.memory_mb, size.cpus) for size in sizes.values()} == {(PRESET_MB, 1)}
    held = "import sys, resource; sys.argv = ['eat', '40', '0']; exec(open('src/eat.py').read());"
    held += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", held], cwd=tmp_path, capture_output=True, check=True
    )
    assert int(done.stdout) > 40 << 10


@pytest.mark.parametrize(("status", "code"), [("FINISHED", 0), ("FAILED", 1)])
def test_the_table_has_both_makespans_and_every_second_attempt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str, code: int
) -> None:
    """The second run is learned from the first; a task that did not finish is an error."""
    asked = []

    def run(_folder: Path, size: str, **environ: str) -> tuple[float, list[Any]]:
        asked.append((Path(size).name, environ))
        tags = {"mlflow_perf.attempts": "2", "mlflow_perf.sizes_mb": "256,512"}
        tried = SimpleNamespace(
            info=SimpleNamespace(run_name="medium_2", status=status),
            data=SimpleNamespace(tags=tags if size == "learned" else {}),
        )
        return (20.0 if size == "learned" else 40.0), [tried]

    monkeypatch.setattr(_real_replay, "run_pipeline", run)
    assert replay_real() == code
    assert asked == [("presets.json", {}), ("learned", {"HUNGRY": "1"})]
    said = capsys.readouterr().out
    assert "presets 40.0 s, learned 20.0 s (-50%)" in said
    assert f"medium_2: {status} with 256, then 512 MB" in said
