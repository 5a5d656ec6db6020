"""How long the page `/perf` takes to list many runs, on sqlite and on PostgreSQL.

`python -m benchmarks.web [RUNS]` fills a store of its own and prints a table: the shortest of five
answers, through MLflow's own app in this process, and what MLflow's own search takes for the same
runs. Target: 1 s for 1,000 runs. PostgreSQL needs Debian's package and `psycopg2`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._timing import best_of

from mlflow_perf.model.metrics import METRICS, RUN_METRICS

TARGET_SEC = 1.0
STEPS = 4  # of each workflow


def fill(store: Any, experiment: str, count: int) -> None:
    """Write runs as the session logs them, one in five of them a workflow, straight into tables."""
    from mlflow.store.tracking.dbmodels import models

    with store.ManagedSessionMaker() as session:
        parent = ""
        for i in range(count):
            run_id, is_parent = uuid.uuid4().hex, i % (STEPS + 1) == 0
            parent = run_id if is_parent else parent
            session.add(
                models.SqlRun(run_uuid=run_id, name=f"run-{i}", experiment_id=int(experiment),
                              status="FINISHED", start_time=i, end_time=i + 1,
                              lifecycle_stage="active", user_id="bench", source_type="LOCAL",
                              artifact_uri="/nowhere")
            )  # fmt: skip
            tags = {"mlflow.runName": f"run-{i}", "mlflow_perf.bottleneck": "cpu"}
            tags |= {"mlflow_perf.pipeline": "flow"} if is_parent else {
                "mlflow_perf.component": "train", "mlflow.parentRunId": parent}  # fmt: skip
            session.add_all(models.SqlTag(run_uuid=run_id, key=k, value=v) for k, v in tags.items())
            session.add_all(
                models.SqlLatestMetric(run_uuid=run_id, key=key, value=i % 97, timestamp=i,
                                       step=0, is_nan=False)
                for key in (*(m.key for m in METRICS), *(m.key for m in RUN_METRICS))
            )  # fmt: skip


def measure(name: str, uri: str, count: int) -> None:
    """Print the rows of one kind of store."""
    from mlflow.entities import ViewType
    from mlflow.server import app, handlers
    from mlflow.server.constants import BACKEND_STORE_URI_ENV_VAR

    from mlflow_perf.web.app import register

    os.environ[BACKEND_STORE_URI_ENV_VAR] = uri
    handlers._tracking_store = None
    store: Any = handlers._get_tracking_store(uri, "/nowhere")
    experiment = store.create_experiment("bench")
    fill(store, experiment, count)
    register(app)
    client = app.test_client()
    for label, path in (("list", "/perf"), ("sorted", "/perf?sort=-run_cpu_hours"),
                        ("filtered", "/perf?component=train&status=FINISHED")):  # fmt: skip
        text = client.get(path).text
        assert text.count('name="run"') > count // 2, text[:500]
        print(f"{name:10} {label:24} {best_of(5, partial(client.get, path)):6.2f} s")
    search = best_of(
        3, lambda: store.search_runs([experiment], "", ViewType.ACTIVE_ONLY, 1000, [], None)
    )
    print(f"{name:10} {'MLflow search_runs':24} {search:6.2f} s")


@contextmanager
def postgres() -> Iterator[str | None]:
    """Run a PostgreSQL of its own on a socket; None where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        yield None
        return
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="perf-pg-"))
    if prefix:
        shutil.chown(folder, "postgres")

    def run(*command: str) -> None:
        subprocess.run([*prefix, *command], check=True, capture_output=True, cwd="/")

    run(str(found[-1]), "-D", f"{folder}/data", "-U", "perf", "-A", "trust")
    control = [
        str(found[-1].parent / "pg_ctl"),
        "-D",
        f"{folder}/data",
        "-w",
        "-l",
        f"{folder}/log",
    ]
    run(*control, "-o", f"-k {folder} -c listen_addresses= -c fsync=off", "start")
    try:
        yield f"postgresql+psycopg2://perf@/postgres?host={folder}"
    finally:
        run(*control, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def main(count: int) -> None:
    """Print the table."""
    print(f"{count:,} runs, target {TARGET_SEC:g} s")
    with tempfile.TemporaryDirectory() as folder:
        measure("sqlite", f"sqlite:///{folder}/mlflow.db", count)
    with postgres() as uri:
        if uri is None:
            print("PostgreSQL is not installed (Debian: postgresql)")
        else:
            measure("PostgreSQL", uri, count)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
