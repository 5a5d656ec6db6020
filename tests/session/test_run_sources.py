"""What a recording reads, and which listeners get its reports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_perf.core.settings import Settings
from mlflow_perf.errors import SettingError
from mlflow_perf.node.place import detect
from mlflow_perf.publish.recovery import read_journal
from mlflow_perf.recorders.rank_commands import RankCommand, RankCommands
from mlflow_perf.session import run_sources
from mlflow_perf.session.run_sources import (
    detect_node,
    open_exporters,
    open_job_readers,
    open_scrapers,
)


def test_a_given_index_overrides_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """`report(node=…)` is as good as the variable; a wrong variable is still refused."""
    monkeypatch.setenv("MLFLOW_PERF_NODE", "1")
    assert (detect_node(None).index, detect_node(3).index) == (1, 3)
    monkeypatch.setenv("MLFLOW_PERF_NODE_COUNT", "many")
    with pytest.raises(SettingError, match="MLFLOW_PERF_NODE_COUNT"):
        detect_node(3)


def test_an_odd_launcher_costs_the_place_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is raised while the place is found, the job is node 0 of 1."""

    def detect_or_fail(environ: dict[str, str]) -> object:
        return detect(environ) if not environ else 1 / 0

    monkeypatch.setattr(run_sources, "detect", detect_or_fail)
    assert detect_node(None).index == 0
    assert "place in its job is unknown" in caplog.text


def test_the_job_of_several_ranks_begins_at_their_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rank samples for all ranks of its node, which are children of the launcher."""
    roots: list[int | None] = []
    monkeypatch.setattr(run_sources, "default_readers", lambda **o: roots.append(o["root_pid"]))
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2",
             "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}  # fmt: skip
    open_job_readers(None, detect(ranks))
    open_job_readers(7, detect(ranks))
    open_job_readers(None, detect({}))
    assert roots == [os.getppid() if os.getppid() > 1 else None, 7, None]


def test_the_job_inside_wrappers_is_the_commands_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrapper stands between the launcher and each rank; it starts no other rank."""
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(run_sources, "default_readers", lambda **o: asked.append(o))
    ranks = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    above = [RankCommands(tmp_path, rank) for rank in range(2)]
    above[0].note(RankCommand(11, launcher_pid=5))
    above[1].note(RankCommand(12, launcher_pid=5))
    open_job_readers(None, detect(ranks), above=above[0])
    ((found,),) = [asked]
    assert (found["root_pid"], found["launcher_pid"]) == (11, 5)
    assert found["ranks"]() == {12: None}  # type: ignore[operator]


@pytest.mark.e2e
@pytest.mark.parametrize("way", ["run", "report"])
def test_the_figures_of_another_process_are_not_the_jobs(tmp_path: Path, way: str) -> None:
    """In a PID namespace without a procfs of its own, a number in /proc is that of a stranger."""
    apart = ["unshare", "--pid", "--fork"]
    if not shutil.which("unshare") or subprocess.call([*apart, "true"]):
        pytest.skip("this machine lets nobody make a PID namespace")
    block = """
import sys, mlflow_perf
with mlflow_perf.report("busy") as perf:
    exec(sys.argv[1])
print(perf.summary["job_cpu_avg_cores"] * perf.summary["duration_sec"])
"""
    work = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    runs = [sys.executable, "-m", "mlflow_perf", "run", "--", sys.executable, "-c", work]
    ended = subprocess.run(
        [*apart, *(runs if way == "run" else [sys.executable, "-c", block, work])],
        env={**os.environ, "MLFLOW_PERF_DIR": str(tmp_path), "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if way == "report":
        assert 0.4 < float(ended.stdout) < 1.5
        return
    assert "only the node is: /proc is that of another PID namespace" in ended.stderr
    journal = next(tmp_path.glob("*.journal"))
    delivery, _ = read_journal(journal.read_bytes())
    summary = delivery.document.summary
    assert "cpu_limit_cores" in summary
    assert not [key for key in summary if key.startswith("job_cpu")]


def test_exporters_and_scrapers_are_only_opened_when_asked_for(tmp_path: Path) -> None:
    """Without a setting there is none; a text file has the labels of component and node."""
    node = detect({"MLFLOW_PERF_NODE": "2"})
    assert open_exporters(Settings(), component="train", node=node) == []
    assert open_scrapers((), 1.0) == []
    file = tmp_path / "job.prom"
    (exporter,) = open_exporters(Settings(textfile=str(file)), component="train", node=node)
    exporter({"mem_percent": 5.0})
    assert 'component="train"' in file.read_text()
    assert 'node="2"' in file.read_text()
    exporter.close()
