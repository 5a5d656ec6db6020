"""The run of a report whose recording ended without one: a server was away, or slow."""

from __future__ import annotations

import math
import time

from mlflow_perf.tracking.client import (
    create_run,
    discard_run,
    find_current_experiment,
    provide_experiment,
)
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.new_store import making_alone
from mlflow_perf.tracking.recorded_runs import (
    RECORDING_TAG,
    discard_repeated_runs,
    find_job_run,
    find_recorded_run,
)
from mlflow_perf.tracking.run_handle import Claim


def provide_run(delivery: Delivery, claim: Claim) -> None:
    """Let a report's handle use its job's run, or a new one, or the one whose answer was lost.

    Args:
        delivery: The report.
        claim: The permission to create the run.

    Raises:
        TimeoutError: When the claim was withdrawn while the run was created.
        Exception: Whatever MLflow raises when the store does not answer.
    """
    run = delivery.run
    with run.creating():
        if run.run_id is not None:  # another thread was creating it
            return
        is_shared, started = run.job_key is not None, delivery.document.started
        with making_alone(run.tracking_uri, is_shared=is_shared):
            chosen = provide_experiment(run) or find_current_experiment(run.tracking_uri)
            joined = find_job_run(run, chosen, since=started)
            found, asked = joined or find_recorded_run(run), -math.inf
            if found is None and claim.is_open:
                asked = time.monotonic()
                found = create_run(
                    run.run_name or "mlflow-perf",
                    tracking_uri=run.tracking_uri,
                    experiment_id=chosen,
                    started=started,
                    tags={RECORDING_TAG: run.nonce, **run.list_tags()},
                )
        is_own = joined is None or joined.data.tags.get(RECORDING_TAG) == run.nonce
        if found is not None:
            info = found.info
            is_used = claim.adopt(info.run_id, own=is_own, experiment_id=info.experiment_id)
            if is_own and not is_used:
                discard_run(info.run_id, tracking_uri=run.tracking_uri)
            elif is_own:
                discard_repeated_runs(run, info.run_id, asked=asked)
        if run.run_id is None:  # neither this thread nor the one that began at the start has one
            raise TimeoutError("the run came after the time for sending")
