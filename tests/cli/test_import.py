"""`mlflow-perf import`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from mlflow import MlflowClient

from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.cli import import_
from mlflow_perf.histories import ImportedWorkflow
from mlflow_perf.publish.workflow_writer import Place
from mlflow_perf.tracking import bulk_runs
from mlflow_perf.tracking.search import get_run

Call = Callable[..., Result]

HEADER = (
    "task_id\thash\tname\tstatus\tsubmit\tstart\trealtime\tcpus\tmemory\t%cpu\tpeak_rss\trchar\n"
)


def _trace(name: str, tasks: int) -> None:
    lines = [
        f"{i}\t{name}/{i}\tALIGN ({i})\tCOMPLETED\t{10**12 + i}\t{10**12 + 1000 * i}\t60000\t4"
        f"\t8589934592\t150\t{(500 + i) * 2**20}\t{i * 2**20}\n"
        for i in range(1, tasks + 1)
    ]
    Path(f"{name}.txt").write_text(HEADER + "".join(lines))


def test_tasks_become_runs_of_their_component_once(
    client: MlflowClient, cli_json: Any, cli: Call
) -> None:
    """A trace that has grown adds its new tasks to the same parent; advise and report work."""
    _trace("grown", 12)
    (first,) = cli_json("import", "grown.txt")
    assert (first["workflow"], first["tasks"], first["known"]) == ("grown", 12, 0)
    _trace("grown", 14)
    (second,) = cli_json("import", "grown.txt")
    assert (second["run_id"], second["tasks"], second["known"]) == (first["run_id"], 2, 12)
    advice = cli_json("advise", first["run_id"])
    assert (advice["cpus"], advice["runs"]) == (2, 14)
    assert 514 <= advice["memory_mb"] < 1000
    assert "ALIGN" in cli("report", first["run_id"], "-o", "-").output
    parent = client.get_run(first["run_id"])
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["duration_sec"] == pytest.approx(73.999)  # from the first `submit`


def test_a_task_on_several_nodes_counts_with_all_of_them(cli: Call, cli_json: Any) -> None:
    """The fleet has the hours of both nodes of a Slurm job, and advice is for each node."""
    Path("jobs.txt").write_text(
        "JobID|JobName|State|ElapsedRaw|AllocCPUS|NNodes|NTasks|ReqMem|MaxRSS|TotalCPU|Start\n"
        "7|pair|COMPLETED|3600|8|2||16G||07:00:00|2026-01-02T10:01:00\n"
        "7.0|python|COMPLETED|3600|8|2|4||1.5G|07:00:00|2026-01-02T10:01:00\n"
    )
    cli_json("import", "jobs.txt")
    (row,) = (row for row in cli_json("fleet", "--by", "component") if row["group"] == "pair")
    assert (row["cpu_hours"], row["unused_cpu_hours"]) == (8.0, 1.0)
    advice = cli_json("advise", "--component", "pair")
    assert (advice["cpus"], advice["nodes"]) == (4, 2)
    assert advice["memory_mb"] >= 3072
    lines = cli("advise", "--component", "pair", "--for", "slurm").output
    assert "--ntasks-per-node=2\n#SBATCH --cpus-per-task=2\n" in lines


@pytest.mark.parametrize("hosts", ["n1 n1 n1", "n1 n2 n3", ""])
def test_tasks_beside_each_other_hold_cpus_of_their_own(cli_json: Any, hosts: str) -> None:
    """A scheduler gives the CPUs of a task to no other: the workflow held what the fleet says."""
    names = hosts.split() or ["", "", ""]
    Path("beside.txt").write_text(
        "JobID|JobName|State|ElapsedRaw|AllocCPUS|NNodes|TotalCPU|Start|NodeList\n"
        f"1|a|COMPLETED|3600|4|1|01:00:00|2026-01-02T10:00:00|{names[0]}\n"
        f"2|b|COMPLETED|3600|4|1|02:00:00|2026-01-02T10:00:00|{names[1]}\n"
        f"3|c|COMPLETED|1800|8|2|03:00:00|2026-01-02T10:30:00|{names[2]}\n"
    )
    (done,) = cli_json("import", "beside.txt")
    (row,) = cli_json("fleet", "--by", "workflow")
    workflow = build_workflow(get_run(done["run_id"]))
    assert workflow is not None
    totals = workflow.totals
    assert row["cpu_hours"] == totals["cpu_hours"] == pytest.approx(12.0)
    assert row["unused_cpu_hours"] == totals["job_unused_cpu_hours"] == pytest.approx(6.0)
    assert totals["unused_cpu_hours"] == pytest.approx(6.0)


def test_the_runs_go_where_the_other_commands_look(
    tmp_path: Path, cli: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default that is MLflow's own store; for a folder of `--to` the address is printed."""
    monkeypatch.setattr(Place, "make_default", lambda _: None)
    monkeypatch.setattr(import_, "find_tracking_uri", lambda: f"sqlite:///{tmp_path}/mlflow.db")
    places: list[str] = []

    def log(workflow: Any, tracking: Any, **_: Any) -> ImportedWorkflow:
        places.append(tracking.place.uri)
        return ImportedWorkflow("a" * 32, "x", workflow.name, "nextflow", 1, 0, 0)

    monkeypatch.setattr(import_, "log_workflow", log)
    _trace("placed", 1)
    assert "then: mlflow-perf advise --all" in cli("import", "placed.txt").stderr
    assert not Path("demo").exists()
    said = cli("import", "placed.txt", "--to", str(tmp_path / "there")).stderr
    assert places == [f"sqlite:///{tmp_path}/mlflow.db", f"sqlite:///{tmp_path}/there/mlflow.db"]
    assert f"then: export MLFLOW_TRACKING_URI={places[1]}, then mlflow-perf advise" in said


def test_a_store_without_tables_gets_the_same_runs(
    client: MlflowClient, cli_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written one by one or in the store's own tables, a run is the same."""
    _trace("tables", 1)
    _trace("calls", 1)
    (by_tables,) = cli_json("import", "tables.txt")
    monkeypatch.setattr(bulk_runs, "_find_tables", lambda *_: None)
    (by_calls,) = cli_json("import", "calls.txt")
    found = []
    for done in (by_tables, by_calls):
        (run,) = client.search_runs(
            [client.get_run(done["run_id"]).info.experiment_id],
            f"tags.`mlflow.parentRunId` = '{done['run_id']}'",
        )
        tags = {k: v for k, v in run.data.tags.items() if k != "mlflow.user"}
        varying = ("mlflow_perf.imported_key", "mlflow_perf.hash", "mlflow.parentRunId")
        kept = {k: v for k, v in tags.items() if k not in varying}
        info = run.info
        found.append(
            (info.run_name, info.status, info.start_time, info.end_time, info.lifecycle_stage,
             info.artifact_uri.endswith(f"/{info.run_id}/artifacts"), run.data.metrics,
             run.data.params, kept, client.get_metric_history(info.run_id, "duration_sec")[0].step)
        )  # fmt: skip
    assert found[0] == found[1]


@pytest.mark.parametrize("by_tables", [True, False])
def test_jobs_without_times_begin_together(
    cli_json: Any, cli: Call, monkeypatch: pytest.MonkeyPatch, *, by_tables: bool
) -> None:
    """Nobody waited, whatever the store; without the number of CPUs there is no verdict on them."""
    if not by_tables:
        monkeypatch.setattr(bulk_runs, "_find_tables", lambda *_: None)
    Path("jobs.txt").write_text(
        "JobID|JobName|User|State|Elapsed|TotalCPU\n"
        "1|a|ann|COMPLETED|2-00:00:00|6-00:00:00\n2|b|bob|COMPLETED|05:00:00|\n"
    )
    (done,) = cli_json("import", "jobs.txt")
    said = cli("show", done["run_id"]).stdout
    assert "2 steps  2 d" in said
    assert "Waiting took" not in said
    assert "waiting" not in cli("explain", done["run_id"]).stdout
    assert {"ann", "bob"} <= {group["group"] for group in cli_json("fleet", "--by", "user")}


def test_jobs_that_nothing_preceded_waited_since_they_were_submitted(
    client: MlflowClient, cli_json: Any, cli: Call
) -> None:
    """The workflow begins when its first job is submitted, in each place that says how long."""
    Path("jobs.txt").write_text(
        "JobID|JobName|State|ElapsedRaw|AllocCPUS|Submit|Start\n"
        "50|prep|COMPLETED|600|2|2026-11-20T08:00:00|2026-11-20T10:00:00\n"
        "51|fit|COMPLETED|600|2|2026-11-20T09:00:00|2026-11-20T10:00:00\n"
    )
    (done,) = cli_json("import", "jobs.txt")
    whole_sec = 7800.0
    workflow = build_workflow(get_run(done["run_id"]))
    assert workflow is not None
    waited = {step.name: step.waited_sec for step in workflow.steps}
    assert waited == {"prep": 7200.0, "fit": 3600.0}
    assert workflow.duration_sec == workflow.totals["duration_sec"] == whole_sec
    parent = client.get_run(done["run_id"])
    assert parent.info.end_time - parent.info.start_time == 1000 * whole_sec
    assert parent.data.metrics["duration_sec"] == whole_sec
    table = cli("show", done["run_id"]).stdout
    assert "2 steps  2 h 10 min" in table
    assert table.count("+2 h") == 2
    assert "Waiting took" in table
    assert "unused" not in table, "the file does not tell the CPU time"
    assert "2 h 10 min" in cli("report", done["run_id"], "-o", "-").output


def test_a_workflow_is_as_good_as_the_last_attempts_of_its_tasks(
    client: MlflowClient, cli_json: Any
) -> None:
    """A task that failed beside another one of its name was not tried again."""
    header = "JobID|JobName|State|ElapsedRaw|Start\n"
    lost = "30|fit|NODE_FAIL|60|2026-11-20T10:00:00\n"
    again = "30|fit|COMPLETED|60|2026-11-20T10:02:00\n"
    beside = "30|fit|COMPLETED|60|2026-11-20T10:00:30\n"
    statuses = []
    for i, attempts in enumerate([lost, lost + again, lost + beside, again + lost]):
        Path("jobs.txt").write_text(header + attempts)
        (done,) = cli_json("import", "jobs.txt", "--experiment", f"attempts {i}")
        statuses.append(client.get_run(done["run_id"]).info.status)
    assert statuses == ["FAILED", "FINISHED", "FAILED", "FINISHED"]
    Path("jobs.txt").write_text(header + lost + again)
    (done,) = cli_json("import", "jobs.txt", "--experiment", "attempts 0")
    assert (done["tasks"], done["known"]) == (1, 1)
    assert client.get_run(done["run_id"]).info.status == "FINISHED"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_files_that_overlap_are_one_workflow(
    client: MlflowClient, cli_json: Any, order: tuple[int, int]
) -> None:
    """Its duration and its status are those of the jobs of both, whichever is imported first."""
    header = "JobID|JobName|State|ElapsedRaw|AllocCPUS|Submit|Start\n"
    jobs = [
        "1|a|FAILED|600|2|2026-11-20T08:00:00|2026-11-20T09:00:00\n",
        "2|b|COMPLETED|600|2|2026-11-20T08:00:00|2026-11-20T10:00:00\n",
        "3|c|COMPLETED|600|2|2026-11-20T11:00:00|2026-11-20T11:50:00\n",
    ]
    files = [jobs[:2], jobs[1:]]
    for at in order:
        Path("jobs.txt").write_text(header + "".join(files[at]))
        (done,) = cli_json("import", "jobs.txt", "--experiment", f"overlapping {order}")
    assert (done["tasks"], done["known"]) == (1, 1)
    workflow, parent = build_workflow(get_run(done["run_id"])), client.get_run(done["run_id"])
    assert workflow is not None
    assert workflow.duration_sec == parent.data.metrics["duration_sec"] == 4 * 3600.0
    assert parent.info.end_time - parent.info.start_time == 4 * 3_600_000
    assert parent.info.status == "FAILED"


def test_earlier_jobs_that_come_later_count_in_each_command(cli_json: Any, cli: Call) -> None:
    """MLflow cannot move a run's start, and all commands say the same duration."""
    header = "JobID|JobName|State|ElapsedRaw|AllocCPUS|Submit|Start\n"
    late = "201|b|COMPLETED|600|2|2026-11-20T20:00:00|2026-11-20T21:00:00\n"
    early = "200|a|COMPLETED|600|2|2026-11-20T10:00:00|2026-11-20T10:10:00\n"
    for jobs in (late, early + late):
        Path("jobs.txt").write_text(header + jobs)
        (done,) = cli_json("import", "jobs.txt", "--experiment", "earlier")
    assert get_run(done["run_id"]).duration_sec == 40_200
    for command in ("show", "explain"):
        assert "11 h 10 min" in cli(command, done["run_id"]).stdout


def test_bad_input_is_one_line(cli: Call) -> None:
    """With the file's line and exit code 2."""
    Path("bad.txt").write_text(HEADER + "1\tx\n")
    result = cli("import", "bad.txt")
    assert result.exit_code == 2
    assert result.stderr.startswith("mlflow-perf: bad.txt, line 2: 2 cells")


def test_a_figure_that_cannot_be_is_one_line_and_left_out(cli: Call) -> None:
    """The others of its line are imported."""
    job = "COMPLETED|600|2|10:00:00\n"
    Path("jobs.txt").write_text(
        f"JobID|JobName|State|ElapsedRaw|AllocCPUS|TotalCPU\n1|a|{job}2|b|{job}3|c|{job}"
    )
    said = cli("import", "jobs.txt", "--experiment", "odd")
    assert said.stderr.splitlines()[0] == (
        "mlflow-perf: jobs.txt, line 2: TotalCPU is '10:00:00', more than 2 CPUs can use in 600 s; "
        "it is left out, as in 2 more lines"
    )
    assert "jobs: 3 tasks imported" in said.stdout
