"""`mlflow-perf show`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import Result
from mlflow import MlflowClient
from tests.analysis.test_phases import make_job

from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.model.document import PerfDocument

Call = Callable[..., Result]


def test_the_json_holds_nodes_and_the_run(log_run: Callable[..., str], cli_json: Any) -> None:
    """The contract: run id, component, metrics by node, run-level metrics."""
    run_id = log_run({}, {"duration_sec": 61.0})
    data = cli_json("show", run_id)
    assert set(data) == {"run_id", "component", "nodes", "run"}
    assert (data["run_id"], data["component"]) == (run_id, "train")
    assert data["nodes"]["1"]["duration_sec"] == 61.0
    assert data["run"]["run_node_count"] == 2.0


def test_a_file_is_shown_without_a_store(write_document: Any, cli: Call, cli_json: Any) -> None:
    """A path is as good as a run id."""
    path = write_document({})
    assert cli_json("show", path)["nodes"]["0"]["duration_sec"] == 60.0
    assert "1 min" in cli("show", path).output


def test_the_verdict_stands_before_the_table(write_document: Any, cli: Call) -> None:
    """The conclusion comes first, then the figures, then the operations."""
    output = cli("show", write_document({"job_cpu_avg_cores": 15.9})).output
    assert output.index("cpu: The CPUs were 99% busy") < output.index("CPU time held")
    assert output.index("CPU time held") < output.index("operation")


def test_figures_with_one_name_share_a_row(log_run: Callable[..., str], cli: Call) -> None:
    """The run's duration is in the same row as those of its nodes, within 80 columns."""
    lines = cli("show", log_run({}, {"duration_sec": 61.0})).output.splitlines()
    (row,) = [line for line in lines if line.startswith("  duration")]
    assert row.split("  ")[-1] == "1 min 01 s"
    assert len(row.split("min")) == 4
    assert max(map(len, lines)) <= 80


def test_the_verdict_is_that_of_the_curves(tmp_path: Path, cli: Call) -> None:
    """`show` names the same part of the run as the tags do, of each component."""
    document = PerfDocument({0: make_job([(30, 0.02, 100, 0), (30, 1.9, 100, 0)])})
    document.components["other"] = PerfDocument({0: make_job([(20, 1.0, 100, 0), (40, 0.1, 1, 0)])})
    path = document.save(tmp_path / "two.json")
    output = " ".join(cli("show", str(path)).output.split())
    for part in (document, document.components["other"]):
        sentence = findings_of(part)[0].sentence
        assert "from " in sentence
        assert ") (" not in sentence
        assert sentence in output


@pytest.mark.parametrize("command", ["show", "explain"])
def test_each_document_is_read_once(
    command: str, log_run: Callable[..., str], cli: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict comes from the curves of the one read that the figures come from, too."""
    run_id = log_run({}, {"duration_sec": 61.0})
    read = Mock(wraps=PerfDocument.from_json)
    monkeypatch.setattr(PerfDocument, "from_json", read)
    assert cli(command, run_id).exit_code == 0
    assert read.call_count == 2


def test_every_line_fits_80_columns(write_document: Any, cli: Call) -> None:
    """Long names and many nodes are cut or folded, never wrapped by the terminal."""
    changes = {f"ops/{'very.long.name' * 10}/{k}": 1.0 for k in ("count", "total_ms", "avg_ms")}
    changes["x" * 200] = 1.0
    for nodes in (1, 3, 12):
        output = cli("show", write_document(*[changes] * nodes)).output
        assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize("command", ["show", "compare", "advise"])
def test_a_long_component_fits_80_columns(write_document: Any, cli: Call, command: str) -> None:
    """The heading is cut like every other name, but not the text beside it."""
    hours = {"a": 1.0, "b": 2.0}
    paths = [
        write_document({"node_cpu_hours": h}, component="c" * 200, name=name)
        for name, h in hours.items()
    ]
    output = cli(command, *paths[: 2 if command == "compare" else 1]).output
    assert max(map(len, output.splitlines())) <= 80
    assert "ccc…" in output
    assert command != "show" or "1 node" in output.splitlines()[0]


def test_a_name_cannot_act_on_the_terminal(write_document: Any, cli: Call) -> None:
    """Escapes and controls of a name are spelled out; colour only where it is asked for."""
    path = write_document({}, component="evil\x1b[2J\u202ename\x9b31m")
    for color in (False, True):
        result = cli("show", path, color=color)
        assert "\\x1b[2J\\u202ename\\x9b31m" in result.output
        assert "\x1b[2J" not in result.output
        assert ("\x1b[1m" in result.output) == color


def test_a_workflow_is_shown_by_its_steps(
    log_run: Callable[..., str], cli: Call, cli_json: Any
) -> None:
    """Of a parent run the steps, the critical path and the findings are shown."""
    parent = log_run(component="flow")
    tags = {"mlflow.parentRunId": parent}
    log_run({}, component="prepare", tags=tags)
    assert "  1 step  " in cli("show", parent).output
    log_run({}, component="fit", tags={**tags, "mlflow_perf.depends_on": "prepare"})
    output = cli("show", parent).output
    assert "prepare → fit" in output
    assert "Change first" in output
    data = cli_json("show", parent)
    assert [step["step"] for step in data["steps"]] == ["prepare", "fit"]
    assert data["nodes"] == {}


def test_a_run_whose_documents_are_missing_shows_what_there_is(
    log_run: Callable[..., str], cli: Call
) -> None:
    """Without documents the run's own figures are shown, and what is missing is said."""
    output = cli("show", log_run({}, {}, documents=False)).output
    assert re.search(r"nodes +2", output)
    assert "documents are missing" in output


def test_a_run_without_data_says_so(log_run: Callable[..., str], cli: Call) -> None:
    """A run without data and one that does not exist end with 2 and one line."""
    for run, message in [
        (log_run(component="empty"), "holds no performance data"),
        (log_run(component="going", status="RUNNING"), "is RUNNING"),
        ("0" * 32, "does not exist"),
        ("no/such/file.json", "There is no run, file or folder"),
    ]:
        result = cli("show", run)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_document_of_a_later_version_is_named(cli: Call, tmp_path: Any) -> None:
    """The message says that an upgrade is needed."""
    path = tmp_path / "later.json"
    path.write_text('{"schema": "mlflow-perf/2", "nodes": {}}')
    result = cli("show", str(path))
    assert result.exit_code == 2
    assert "Upgrade mlflow-perf" in result.stderr


def test_thousands_of_operations_are_cut(write_document: Any, cli: Call) -> None:
    """The slowest operations are shown, and how many more there are."""
    changes = {f"ops/op{i}/total_ms": float(i) for i in range(3000)}
    output = cli("show", write_document(changes)).output
    assert "op2999" in output
    assert "2,981 more operations" in output


def test_operations_and_transfers_are_everywhere(write_document: Any, cli: Call) -> None:
    """`show`, `compare` and the report give the same figures for the work and I/O of a step."""
    slow, fast = (
        write_document(
            {"ops/load/count": 4.0, "ops/load/total_ms": total, "ops/load/avg_ms": total / 4,
             "ops/load/p95_ms": total / 2, "ops/load/max_ms": total,
             "transfers/nixl/num_successful": 7.0, "transfers/nixl/throughput_mb_s": total},
            name=name,
        )
        for name, total in (("slow", 1800.0), ("fast", 900.0))
    )  # fmt: skip
    shown = cli("show", slow).output
    assert re.search(r"load +4 +1\.8 s +450 ms +– +900 ms +1\.8 s", shown), shown
    assert re.search(r"nixl, throughput_mb_s +1,800 MB/s", shown)
    compared = cli("compare", slow, fast).output
    assert re.search(r"load, 95% within +better", compared)
    assert re.search(r"nixl, throughput_mb_s +worse", compared)
    assert cli("report", slow).exit_code == 0
    page = Path("perf_report.html").read_text(encoding="utf-8")
    for part in ('id="operations-title"', 'id="transfers-title"', "<bdi>nixl</bdi>", "MB/s"):
        assert part in page


def test_a_users_metric_that_is_no_number_is_left_out(
    log_run: Callable[..., str], client: MlflowClient, cli_json: Any
) -> None:
    """A loss of NaN, in a run without documents, costs neither the JSON nor the other figures."""
    run_id = log_run({}, documents=False)
    client.log_metric(run_id, "loss", float("nan"))
    (summary,) = cli_json("show", run_id)["nodes"].values()
    assert summary["duration_sec"] == 60.0
    assert "loss" not in summary


def test_the_mean_of_an_operation_is_that_of_all_nodes(write_document: Any, cli: Call) -> None:
    """The mean shown is the total divided by the count in the same row."""
    slow = {"ops/load/count": 1.0, "ops/load/total_ms": 9.0, "ops/load/avg_ms": 9.0}
    output = cli("show", write_document({}, slow)).stdout
    (row,) = [line.split() for line in output.splitlines() if line.startswith("load")]
    assert row[1:6] == ["4", "21.3", "ms", "5.33", "ms"]


def test_half_a_character_is_shown_as_none(tmp_path: Path, cli: Call) -> None:
    """A name with half of a surrogate pair, which JSON can hold, costs neither table nor page."""
    node = '{"component": "a\\ud800b \\ud83d\\ude00", "summary": {"duration_sec": 1.0}}'
    path = tmp_path / "half.json"
    path.write_text(f'{{"schema": "mlflow-perf/1", "nodes": {{"0": {node}}}}}')
    assert "a?b \U0001f600" in cli("show", str(path)).stdout
    assert cli("report", str(path)).exit_code == 0


def test_the_job_comes_before_the_node(write_document: Any, cli: Call) -> None:
    """The first lines say what the job used; the node's figures have their own table."""
    figures = {"job_cpu_avg_cores": 0.9, "cpu_limit_cores": 2.0, "cpu_avg_utilization_pct": 75.0}
    output = cli("show", write_document(figures)).output
    assert "your job 0.9 of 2 CPUs, others 0.6, idle 0.5" in output
    order = ["others 0.6", "CPU of the job", "CPUs used  ", "The whole node",
             "node's CPUs busy"]  # fmt: skip
    places = [output.index(text) for text in order]
    assert places == sorted(places)


def test_the_duration_of_a_job_that_was_cut_off_is_a_lower_bound(tmp_path: Path, cli: Call) -> None:
    """Nobody saw its end: it says "at least"."""
    path = tmp_path / "cut.json"
    for known, said in (('"duration_sec": 2.5', "at least 2.5 s"), ('"duration_sec": 0.0', "–")):
        node = f'{{"component": "a", "status": "KILLED", "started": 1.0, "cut_off": true, {known}}}'
        path.write_text(f'{{"schema": "mlflow-perf/1", "nodes": {{"0": {node}}}}}')
        assert cli("show", str(path)).stdout.splitlines()[0] == f"a  KILLED  1 node  {said}"
    summary = '"duration_sec": 2.5, "summary": {"duration_sec": 2.5}'
    path.write_text(path.read_text().replace('"duration_sec": 0.0', summary))
    assert "≥ 2.5 s" in cli("show", str(path)).stdout
    path.write_text(path.read_text().replace('"cut_off": true', '"cause": "signal SIGKILL"'))
    assert cli("show", str(path)).stdout.splitlines()[1] == "Ended by: signal SIGKILL"
