"""How a pipeline ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.core.uris import first_line
from mlflow_perf.errors import PipelineStoppedError, StepFailedError
from mlflow_perf.model.document import BROKEN
from mlflow_perf.pipelines.step_outcome import Outcome
from mlflow_perf.tracking.perf_run import PerfRun


@dataclass
class Result:
    """How a pipeline ended.

    Attributes:
        run_id: The parent run.
        experiment_id: Its experiment.
        status: `FINISHED`, `FAILED` or `KILLED`.
        steps: The outcome of each step, in the order of the graph.
        outputs: Paths of the pipeline's outputs.
        duration_sec: How long it took.
        is_ended: Whether MLflow has its end.
        end_tags: Tags of the parent run's end: why its steps could not be run.
        runs: The runs of its steps as MLflow has them; none where it does not answer.
    """

    run_id: str
    experiment_id: str
    status: str = "RUNNING"
    steps: dict[str, Outcome] = field(default_factory=dict)
    outputs: dict[str, Path] = field(default_factory=dict)
    duration_sec: float = 0.0
    is_ended: bool = False
    end_tags: dict[str, str] = field(default_factory=dict)
    runs: tuple[PerfRun, ...] = ()

    def fail(self, error: BaseException) -> None:
        """Note that its steps could not be run."""
        self.status = "FAILED"
        self.end_tags["mlflow_perf.error"] = first_line(error)

    def blame(self, needs: Sequence[str]) -> str:
        """Return which of the steps that another one needs did not finish, as a sentence."""
        unfinished = [name for name in needs if self.steps[name].status != "FINISHED"]
        return f"{' and '.join(unfinished or needs)} did not finish"

    def raise_for_status(self) -> None:
        """Raise an error that names each failed step, if the pipeline did not finish.

        Raises:
            StepFailedError: A step failed.
            PipelineStoppedError: The pipeline was stopped.
        """
        if self.status == "KILLED":
            unfinished = [n for n, o in self.steps.items() if o.status != "FINISHED"]
            message = "Stopped by an interrupt; all steps were ended."
            raise PipelineStoppedError(unfinished[0] if unfinished else "", message)
        if self.status != "FINISHED":
            failed = [o for o in self.steps.values() if o.status in BROKEN]
            lines = [
                f"Step {o.name!r} failed: {o.message.rstrip('.')}."
                + (f" Its log: {o.log}" if o.log and o.log.exists() else "")
                for o in failed
            ]
            if not failed:  # what runs them was lost before one had begun
                lines = list(dict.fromkeys(o.message for o in self.steps.values() if o.message))
            name = failed[0].name if failed else ""
            raise StepFailedError(name, "\nmlflow-perf: ".join(lines))
