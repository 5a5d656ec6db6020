"""The entry point that MLflow loads on import: tags, and no harm."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient

from mlflow_perf import plugin
from mlflow_perf.plugin import NodeRunContext


def test_the_tags_name_node_and_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that `start_run` creates says where it was started."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    tags = NodeRunContext().tags()
    assert tags["mlflow_perf.job_id"] == "77"
    assert tags["mlflow_perf.launcher"] == "slurm"
    assert set(tags) == {
        "mlflow_perf.hostname", "mlflow_perf.launcher", "mlflow_perf.job_id", "mlflow_perf.nodes",
    }  # fmt: skip


def test_a_wrong_setting_of_ours_harms_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """`start_run` of a host never fails for us."""
    monkeypatch.setenv("MLFLOW_PERF_NODE", "first")
    assert NodeRunContext().tags() == {}


@pytest.mark.parametrize(
    ("value", "wanted"), [("true", False), (" on ", False), ("1", False), ("", True)]
)
def test_disabling_silences_it(monkeypatch: pytest.MonkeyPatch, value: str, wanted: bool) -> None:
    """MLFLOW_PERF_DISABLE leaves other people's runs alone."""
    monkeypatch.setenv("MLFLOW_PERF_DISABLE", value)
    assert NodeRunContext().in_context() is wanted


@pytest.mark.parametrize(("value", "warns"), [("ture", True), ("false", False), ("on", False)])
def test_a_switch_that_is_neither_on_nor_off_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str, warns: bool
) -> None:
    """A typing error would cost all reports without a word."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("MLFLOW_PERF_AUTOLOG", value)
    NodeRunContext()
    said = ["MLFLOW_PERF_AUTOLOG has no effect: it is 'ture'; it must be true or false."]
    assert caplog.messages == (said if warns else [])


def test_mlflow_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's registry merges our tags with its own."""
    from mlflow.tracking.context import registry

    registered: Any = registry.RunContextProviderRegistry()  # type: ignore[no-untyped-call]
    registered.register(NodeRunContext)
    monkeypatch.setattr(registry, "_run_context_provider_registry", registered)
    assert "mlflow_perf.launcher" in registry.resolve_tags({"mine": "1"})


def test_importing_it_imports_nothing_heavy() -> None:
    """What MLflow loads on every import is the standard library only."""
    code = (
        "import sys; import mlflow_perf.plugin; "
        "heavy = ('mlflow', 'psutil', 'numpy', 'mlflow_perf.node.place'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_first_run_of_a_left_step_is_the_steps(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was away when the step began: with the step's run, MLflow would continue that."""
    client = MlflowClient(store)
    home = os.environ["MLFLOW_EXPERIMENT_ID"]
    parent = client.create_run(home).info.run_id
    monkeypatch.setattr(plugin, "_runs_of_step", itertools.count())
    left = {"parent": parent, "step": "load data", "store": store, "experiment": home}
    monkeypatch.setenv("MLFLOW_PERF_STEP", json.dumps(left))
    mlflow.set_experiment("another")  # of the job's own
    with mlflow.start_run() as other:
        pass
    mlflow.set_experiment(experiment_id=home)
    with mlflow.start_run() as first:
        pass
    with mlflow.start_run() as second:
        pass
    tags = [client.get_run(run.info.run_id).data.tags for run in (first, second, other)]
    assert tags[0]["mlflow.parentRunId"] == parent
    assert tags[0]["mlflow_perf.step"] == "load data"
    for none in tags[1:]:
        assert not {"mlflow.parentRunId", "mlflow_perf.step"} & none.keys()
