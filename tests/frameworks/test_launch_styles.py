"""`MLFLOW_PERF_AUTOLOG=true` with Lightning's logger, transformers' Trainer and Optuna's trials."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

import mlflow_perf

pytestmark = pytest.mark.e2e

LIGHTNING = """
import os, logging, torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import MLFlowLogger

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

logger = MLFlowLogger("lightning", tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
trainer = Trainer(max_epochs=1, accelerator="cpu", logger=logger, enable_progress_bar=False)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=4))
print("RUNS", logger.run_id)
"""
TRANSFORMERS = """
import mlflow, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(
    vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=16, max_position_embeddings=16,
)
rows = [{"input_ids": torch.ones(8, dtype=torch.long), "labels": 0}] * 64
arguments = TrainingArguments(
    "out", num_train_epochs=1, per_device_train_batch_size=4, report_to=["mlflow"],
    disable_tqdm=True, use_cpu=True, save_strategy="no",
)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows).train()
print("RUNS", mlflow.last_active_run().info.run_id)
"""
OPTUNA = """
import time, mlflow, optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
runs = []

def objective(trial):
    with mlflow.start_run(nested=True, parent_run_id=study_run.info.run_id) as run:
        runs.append(run.info.run_id)
        x = trial.suggest_float("x", -1, 1)
        while len(runs) < 2:  # both trials run at the same time
            time.sleep(0.01)
        time.sleep(0.3)
        mlflow.log_metric("loss", x * x)
        return x * x

with mlflow.start_run() as study_run:
    optuna.create_study().optimize(objective, n_trials=2, n_jobs=2)
print("RUNS", study_run.info.run_id, *runs)
"""


def launch(code: str, folder: Path) -> list[str]:
    """Run a script whose runs report by themselves, and return their ids."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "MLFLOW_PERF_AUTOLOG": "true"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = done.stdout.rpartition("RUNS ")[2].split()
    assert all(run_id in done.stderr for run_id in runs), done.stderr
    return runs


@pytest.mark.parametrize(
    ("library", "code"), [("lightning", LIGHTNING), ("transformers", TRANSFORMERS)]
)
def test_a_trainer_that_logs_to_mlflow_reports(
    library: str, code: str, store: str, tmp_path: Path
) -> None:
    """Its run has the report of the training, with the steps of the loop."""
    pytest.importorskip(library, reason=f"{library} is not installed: `make test-frameworks`")
    (run_id,) = launch(code, tmp_path)
    run = MlflowClient().get_run(run_id)
    assert run.data.tags["mlflow_perf.status"] == run.info.status == "FINISHED"
    assert run.data.metrics["duration_sec"] > 0
    loop = mlflow_perf.load(run_id).nodes[0].steps["step"]["ranks"]["0"]
    assert loop["step"]["count"] == 16
    assert {"input", "forward", "backward", "optimizer"} <= loop["parts"].keys()


def test_trials_of_optuna_in_threads_say_that_they_overlap(store: str, tmp_path: Path) -> None:
    """Each trial has a report of its own below the study's, and names the other one's presence."""
    pytest.importorskip("optuna", reason="optuna is not installed: `make test-frameworks`")
    study, *trials = launch(OPTUNA, tmp_path)
    assert len(trials) == 2
    for run_id in trials:
        run = MlflowClient().get_run(run_id)
        assert run.data.tags["mlflow_perf.overlapping_runs"] == "1"
        assert run.data.tags["mlflow.parentRunId"] == study
        assert run.data.metrics["duration_sec"] >= 0.3
    assert "mlflow_perf.overlapping_runs" not in MlflowClient().get_run(study).data.tags
