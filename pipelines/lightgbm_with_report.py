"""The LightGBM pipeline as a step of a larger one that ends with the workflow's report.

The runner writes that report by itself; on Azure ML a pipeline ends with `perf_report` to get it.
"""

import sys
from pathlib import Path
from typing import Any

from azure.ai.ml import dsl, load_component

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from lightgbm_training import lightgbm_training  # noqa: E402 - the folder comes onto the path above

_report = load_component(str(HERE.parent / "components" / "perf_report" / "component.yaml"))


@dsl.pipeline(
    name="lightgbm_with_report",
    display_name="LightGBM training with report",
    experiment_name="lightgbm_training",
    default_compute="cpu-cluster",
)
def lightgbm_with_report(rows: int = 200000, iterations: int = 40) -> dict[str, Any]:
    """Return the model, the predictions and the report.

    Args:
        rows: Rows of the generated table.
        iterations: Boosting rounds.
    """
    training = lightgbm_training(rows=rows, iterations=iterations)
    report = _report(after_1=training.outputs.model, after_3=training.outputs.predictions)
    return {"model": training.outputs.model, "report": report.outputs.report}
