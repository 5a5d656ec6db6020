"""A store with runs as mlflow-perf logs them, and servers on it, for the tests of the page."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import Request, urlopen

from tests.reports import html_samples as samples

from mlflow_perf.model.document import PerfDocument
from mlflow_perf.tracking.batches import select_run_metrics

if TYPE_CHECKING:
    from mlflow import MlflowClient

NOW_MS = 1763640000000
_ENTRY_POINTS = """[mlflow.app]
mlflow-perf = mlflow_perf.web:create_app
mlflow-perf-basic-auth = mlflow_perf.web:create_app_with_basic_auth
"""


@dataclass
class Filled:
    """What a store holds: ids by name."""

    uri: str
    experiments: dict[str, str]
    runs: dict[str, str]


def fill(uri: str, artifacts: Path, *, more: int = 0) -> Filled:
    """Put a workflow of two steps, a hostile run, one in another experiment and `more` in."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    names = ("forecast", "secret")
    made = Filled(uri, {}, {})
    for name in names:
        location = (artifacts / name).as_uri()
        made.experiments[name] = client.create_experiment(name, artifact_location=location)
    start = NOW_MS
    parent = client.create_run(made.experiments["forecast"], start, run_name="training")
    made.runs["training"] = parent.info.run_id
    for name, nodes in (("prepare", 1), ("train", 2)):
        tags = {"mlflow.parentRunId": parent.info.run_id, "mlflow_perf.step": name}
        made.runs[name] = _add(client, made.experiments["forecast"], name, start, nodes, tags)
        start += 60_000
    client.set_terminated(parent.info.run_id, "FINISHED", start)
    made.runs["hostile"] = _add(client, made.experiments["forecast"], samples.HOSTILE, start, 1)
    made.runs["hidden"] = _add(client, made.experiments["secret"], "hidden", start, 1)
    for i in range(more):
        made.runs[f"run{i}"] = _add(client, made.experiments["forecast"], f"run{i}", start + i, 1)
    return made


def _add(
    client: MlflowClient,
    experiment: str,
    name: str,
    start: int,
    nodes: int,
    tags: Mapping[str, str] | None = None,
) -> str:
    from mlflow.entities import Metric, Param, RunTag

    document = samples.document(nodes, rows=20)
    run = client.create_run(experiment, start, run_name=name)
    figures = [(k, v, i) for i, n in document.nodes.items() for k, v in n.summary.items()]
    of_run = select_run_metrics(document.run_summary)
    figures += [(k, v * (1 + len(name) / 10), 0) for k, v in of_run.items()]
    ours = {"component": name, "bottleneck": "cpu", "advice": f"Busy {name}.", "status": "FINISHED"}
    all_tags = {**{f"mlflow_perf.{k}": v for k, v in ours.items()}, **(tags or {})}
    clean = [(k, v, i) for k, v, i in figures if k.isascii()]
    client.log_batch(
        run.info.run_id,
        [Metric(k, v, start, i) for k, v, i in clean],
        [Param("said", name)],
        [RunTag(k, v) for k, v in all_tags.items()],
    )
    with tempfile.TemporaryDirectory() as folder:
        for index, node in document.nodes.items():
            node.run_id, node.component = run.info.run_id, name
            PerfDocument({index: node}).save(Path(folder) / f"node-{index}.json")
        client.log_artifacts(run.info.run_id, folder, "perf")
    client.set_terminated(run.info.run_id, "FINISHED", start + 50_000)
    return str(run.info.run_id)


@contextmanager
def server(
    store: Filled, folder: Path, *options: str, app: str = "mlflow-perf", **environment: str
) -> Iterator[str]:
    """Run `mlflow server` with the page on a free port of this machine; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", app, "--workers", "1"]
    command += ["--backend-store-uri", store.uri, "--host", "127.0.0.1", "--port", str(port)]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **environment}
    env["PYTHONPATH"] = os.pathsep.join([*_entry_points(folder), env.get("PYTHONPATH", "")])
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *options], env=env, cwd=folder, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            prefix = (
                options[options.index("--static-prefix") + 1]
                if "--static-prefix" in options
                else ""
            )
            _wait(f"http://127.0.0.1:{port}{prefix}/health", process, folder / "server.log")
            yield f"http://127.0.0.1:{port}{prefix}"
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and the workers that it started, which are in a process group of their own."""
    import signal

    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue


def _entry_points(folder: Path) -> list[str]:
    """Return where this package's entry points are, if the installation does not have them."""
    if entry_points(group="mlflow.app", name="mlflow-perf"):
        return []
    info = folder / "entry" / "mlflow_perf_entry-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mlflow-perf-entry\nVersion: 0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    return [str(info.parent)]


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    # MLflow's own start takes 5 to 60 s, by how busy the machine is.
    for _ in range(720):
        if process.poll() is not None:
            break
        try:
            if get(address)[0] == 200:
                return
        except (URLError, ConnectionError):
            pass
        time.sleep(0.25)
    raise AssertionError(f"The server did not start:\n{log.read_text(errors='replace')[-3000:]}")


def get(
    address: str, *, user: str = "", method: str = "GET", data: bytes | None = None
) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    import base64
    from urllib.error import HTTPError

    headers = {"Content-Type": "application/json"} if data else {}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    try:
        with urlopen(Request(address, data, headers, method=method), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def list_shown(text: str) -> list[str]:
    """Return the ids of the runs in the list."""
    return re.findall(r'name="run" value="([0-9a-f]{32})"', text)
