"""Data, partition, data-parallel LightGBM training on two nodes, score.

The same object runs here (`mlflow-perf pipeline run pipelines/lightgbm_training.py`), on a cluster
(`--on CONFIG.py`) and on Azure ML (`--on azureml`). azure-ai-ml reads the annotations of the
inputs, so this file does without `from __future__ import annotations`.
"""

from pathlib import Path
from typing import Any

from azure.ai.ml import dsl, load_component

COMPONENTS = Path(__file__).resolve().parents[1] / "components"


def _component(name: str) -> Any:
    return load_component(str(COMPONENTS / name / "component.yaml"))


# The variables inside the pipeline name its steps; so the components go by other names.
_generate = _component("generate_data")
_partition = _component("partition_data")
_train = _component("train_lightgbm")
_score = _component("score")


@dsl.pipeline(
    name="lightgbm_training",
    display_name="LightGBM training",
    description="Generates data, trains LightGBM on two nodes and scores the model.",
    experiment_name="lightgbm_training",
    default_compute="cpu-cluster",
)
def lightgbm_training(  # noqa: D417 - each input is described in its component
    rows: int = 200000, features: int = 28, iterations: int = 40, seed: int = 7
) -> dict[str, Any]:
    """Return the pipeline's outputs: the model and the predictions.

    Args:
        rows: Rows of the generated table.
    """
    generate_data = _generate(rows=rows, features=features, seed=seed)
    # The training component asks for two nodes: one part of the rows each.
    partition_data = _partition(data=generate_data.outputs.data, parts=2)
    train_lightgbm = _train(parts_data=partition_data.outputs.parts_data, iterations=iterations)
    score = _score(data=generate_data.outputs.data, model=train_lightgbm.outputs.model)
    return {"model": train_lightgbm.outputs.model, "predictions": score.outputs.predictions}
