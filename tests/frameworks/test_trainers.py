"""Lightning and transformers: their Trainers get the callback by themselves."""

from __future__ import annotations

import logging
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.integrations import lightning as lightning_callback
from mlflow_perf.integrations import training
from mlflow_perf.recorders.steps import StepMetrics

torch = pytest.importorskip("torch", reason="torch is not installed: run `make test-frameworks`")


def make_loader(rows: int = 32, wait_sec: float = 0.0) -> Any:
    base: Any = torch.utils.data.Dataset

    class Rows(base):  # type: ignore[misc]  # untyped here
        def __len__(self) -> int:
            return rows

        def __getitem__(self, index: int) -> Any:
            time.sleep(wait_sec)
            return torch.ones(4)

    return torch.utils.data.DataLoader(Rows(), batch_size=4)


def test_lightning(session: StepMetrics, tmp_path: Path) -> None:
    """A Trainer's steps have input, forward, backward, optimizer, evaluation and checkpoint."""
    lightning = pytest.importorskip(
        "lightning.pytorch", reason="lightning is not installed: run `make test-frameworks`"
    )

    module: Any = lightning.LightningModule

    class Model(module):  # type: ignore[misc]  # untyped here
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            time.sleep(0.004)
            return self.layer(batch).sum()

        def validation_step(self, batch: Any, _: int) -> None:
            time.sleep(0.002)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    for name in ("lightning.pytorch", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        default_root_dir=str(tmp_path),
    )
    trainer.fit(Model(), make_loader(wait_sec=0.003), make_loader(rows=8))
    found = session.records()["step"][0]
    assert found.step.count == 16
    parts = {name: times.mean_ms for name, times in found.parts.items()}
    assert parts["input"] >= 12.0
    assert 4.0 <= parts["forward"] < 12.0
    assert {"backward", "optimizer", "evaluation", "checkpoint"} <= parts.keys()
    assert found.parts["evaluation"].total_ms >= 2 * 2 * 2.0
    assert found.parts["input"].total_ms < found.step.total_ms
    callback = lightning_callback.make_callback()
    assert type(pickle.loads(pickle.dumps(callback))) is type(callback)


def test_transformers(session: StepMetrics, tmp_path: Path) -> None:
    """A Trainer's steps have input, forward, backward, optimizer, evaluation and checkpoint."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: run `make test-frameworks`"
    )
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    transformers.utils.logging.set_verbosity_error()
    base: Any = transformers.TrainerCallback

    class EnableLate(base):  # type: ignore[misc]  # untyped here
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            training.enable()

    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    rows = [{"input_ids": torch.ones(8, dtype=torch.long), "labels": 0} for _ in range(32)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, eval_strategy="epoch", save_strategy="epoch",
        report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(
        BertForSequenceClassification(config), arguments, train_dataset=rows, eval_dataset=rows[:8]
    )
    training.disable()  # autolog follows the library when the first run starts: in training
    trainer.add_callback(EnableLate())
    trainer.train()
    assert session.records().keys() == {"step"}
    found = session.records()["step"][0]
    assert found.step.count == 8
    assert found.parts["evaluation"].count <= 2
    assert {"forward", "backward", "optimizer", "evaluation", "checkpoint"} <= found.parts.keys()
    assert found.parts["backward"].count == 8
    named = sum(t.total_ms for n, t in found.parts.items() if n not in ("input", "compute"))
    assert named <= found.parts["compute"].total_ms * 1.001


def test_an_evaluation_beside_a_callback_is_no_wait(session: StepMetrics, tmp_path: Path) -> None:
    """Transformers tells its end alone, so that the callback times the method."""
    pytest.importorskip(
        "transformers", reason="transformers is not installed: run `make test-frameworks`"
    )
    from transformers import Trainer, TrainingArguments

    from mlflow_perf.integrations.transformers import make_callback, unfollow

    base: Any = torch.nn.Module

    class Slow(base):  # type: ignore[misc]  # untyped here
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any) -> dict[str, Any]:
            time.sleep(0.0 if self.training else 0.2)
            return {"loss": self.layer(x).square().mean(), "logits": x}

    rows = [{"x": torch.ones(4)} for _ in range(16)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4,
        eval_strategy="steps", eval_steps=2, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    training.disable()
    Trainer(
        Slow(), arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=[make_callback()]
    ).train()
    unfollow()
    found = session.records()["step"][0]
    assert found.step.count == 8
    assert found.parts["evaluation"].total_ms >= 800
    assert found.parts["compute"].total_ms >= 600  # the last evaluation is after the last step
