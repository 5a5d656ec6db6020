"""`mlflow-perf download`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result
from mlflow import MlflowClient
from tests.reports.test_flame import make_node

from mlflow_perf.core.json_io import to_json
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.tracking.load import load

Call = Callable[..., Result]


def test_the_documents_come_back_whole(log_run: Callable[..., str], cli: Call) -> None:
    """One file per node, which load as the run itself does."""
    run_id = log_run({}, {"duration_sec": 61.0})
    assert cli("download", run_id, "here").exit_code == 0
    assert sorted(p.name for p in Path("here").iterdir()) == ["node-0.json", "node-1.json"]
    assert load("here").as_dict() == load(run_id).as_dict()


def test_a_profile_comes_beside_its_document(
    log_run: Callable[..., str], client: MlflowClient, cli_json: Any, tmp_path: Path
) -> None:
    """The folder has all JSON of the run: profile-<n>.speedscope.json too, as in the artifacts."""
    run_id = log_run({})
    (tmp_path / "node-0.json").write_text(to_json(PerfDocument({0: make_node(0)}).as_dict()))
    client.log_artifact(run_id, str(tmp_path / "node-0.json"), "perf")
    assert cli_json("download", run_id, "all") == [
        "all/node-0.json",
        "all/profile-0.speedscope.json",
    ]
    assert load("all").nodes[0].component == "train"


def test_the_default_folder_is_named_after_the_run(
    log_run: Callable[..., str], cli_json: Any
) -> None:
    """Without a folder the files lie in one of their own."""
    run_id = log_run({})
    assert cli_json("download", run_id) == [f"perf-{run_id[:8]}/node-0.json"]


def test_a_workflow_comes_with_its_steps(log_run: Callable[..., str], cli: Call) -> None:
    """A folder per step, and the whole in workflow.json; no name leads out of the folder."""
    parent = log_run(component="flow")
    for step in ("../../evil", "fit"):
        log_run({}, component=step, tags={"mlflow.parentRunId": parent})
    assert cli("download", parent, "out/flow").exit_code == 0
    files = sorted(str(p) for p in Path().rglob("*.json"))
    assert files == [
        "out/flow/_.._evil/node-0.json",
        "out/flow/fit/node-0.json",
        "out/flow/workflow.json",
    ]
    assert len(json.loads(Path("out/flow/workflow.json").read_text())["steps"]) == 2


def test_impossible_requests_end_with_2(log_run: Callable[..., str], cli: Call) -> None:
    """No data and a place that cannot be written get one line each."""
    result = cli("download", log_run(component="empty"))
    assert (result.exit_code, "no performance documents" in result.stderr) == (2, True)
    Path("file").write_text("")
    result = cli("download", log_run({}), "file/below")
    assert (result.exit_code, "cannot be written" in result.stderr) == (2, True)


def test_no_step_is_written_over_another(log_run: Callable[..., str], cli: Call) -> None:
    """Names of which a folder's name keeps nothing, or the same, get folders of their own."""
    parent = log_run(component="flow")
    for step in ("训练", "推理", "fit/a", "fit:a", "FIT_A"):
        log_run({}, component=step, tags={"mlflow.parentRunId": parent})
    assert cli("download", parent, "out").exit_code == 0
    assert len(list(Path("out").glob("*/node-0.json"))) == 5
