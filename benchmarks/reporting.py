"""What the end of a block costs against a real MLflow server, beside bare calls and the seed's way.

Run it with `python -m benchmarks.reporting`. Each round times all of them in turn; figures are
medians, and the ratio is taken within the run.

- seed: a `log_metric` per metric, as lightgbm-benchmark's reporter logs its eighteen;
- bare: one `log_batch` of the same metrics and tags, and one upload of the same two files;
- ours: leaving the block of `mlflow_perf.report()`, document and HTML report made included.

Then the same without a server, and with one that accepts connections and never answers.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROUNDS = 15


@contextmanager
def server() -> Iterator[str]:
    """Run an MLflow server with one worker on a loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port),
                "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
                "--artifacts-destination", f"{folder}/artifacts",
            ],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url)
            yield url
        finally:
            os.killpg(process.pid, 15)
            process.wait(20)


def _wait(url: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise SystemExit("the MLflow server did not start")


@contextmanager
def counted() -> Iterator[list[str]]:
    """Collect the requests that MLflow's client sends in this context."""
    import requests

    sent: list[str] = []
    original = requests.Session.request

    def request(self: requests.Session, method: str, url: str, **options: Any) -> Any:
        sent.append(f"{method} {url}")
        return original(self, method, url, **options)

    with patch.object(requests.Session, "request", request):
        yield sent


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begin)


_LEAVER = """
import time
import mlflow_perf

session = mlflow_perf.report("bench").__enter__()
begin = time.perf_counter()
session.__exit__(None, None, None)
print(time.perf_counter() - begin, flush=True)
"""


def exit_sec(url: str) -> tuple[float, float]:
    """Return the seconds to leave a block, and of the whole process, with a broken server.

    Args:
        url: The server's address.
    """
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "MLFLOW_TRACKING_URI": url, "MLFLOW_PERF_DIR": folder}
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _LEAVER],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        )  # fmt: skip
        return float(done.stdout), time.perf_counter() - begin


def _measure_ill() -> None:
    print(f"{'end of a block, server':<24}{'seconds':>10}{'process':>10}{'at most':>10}")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        answers_not = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for how, url in (("refuses", "http://127.0.0.1:9"), ("hangs", answers_not)):
            left, whole = exit_sec(url)
            print(f"{how:<24}{left:>10.1f}{whole:>10.1f}{30:>10}")


def main() -> None:
    """Print the tables."""
    _measure_ill()
    with server() as url:
        os.environ["MLFLOW_TRACKING_URI"] = url
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        _measure()


def _measure() -> None:
    import mlflow
    from mlflow.entities import Metric, RunTag

    import mlflow_perf

    client = mlflow.MlflowClient()
    with mlflow_perf.report("warm-up") as warm:
        pass
    files = Path(client.download_artifacts(str(warm.run_id), ""))
    eighteen = dict(list(warm.summary.items())[:18])
    times: dict[str, list[float]] = {"seed": [], "bare": [], "ours": []}
    calls: dict[str, list[int]] = {"seed": [], "bare": [], "ours": []}

    def seed() -> None:
        run = client.create_run("0").info.run_id
        with counted() as sent:
            times["seed"].append(
                _timed(lambda: [client.log_metric(run, k, v, step=0) for k, v in eighteen.items()])
            )
        calls["seed"].append(len(sent))

    def bare() -> None:
        run = client.create_run("0").info.run_id
        now = int(1000 * time.time())
        metrics = [Metric(k, v, now, 0) for k, v in warm.summary.items()]
        tags = [RunTag(f"t{i}", "x") for i in range(10)]

        def end() -> None:
            client.log_batch(run, metrics=metrics, tags=tags)
            client.log_artifacts(run, str(files))
            client.set_terminated(run)

        with counted() as sent:
            times["bare"].append(_timed(end))
        calls["bare"].append(len(sent))

    def ours() -> None:
        session = mlflow_perf.report("bench")
        session.__enter__()
        time.sleep(0.02)
        with counted() as sent:
            times["ours"].append(_timed(lambda: session.__exit__(None, None, None)))
        calls["ours"].append(len(sent))

    for _ in range(ROUNDS):
        seed()
        bare()
        ours()
    print(f"{'end of a block':<24}{'median ms':>10}{'requests':>10}{'ours/it':>10}")
    mine = statistics.median(times["ours"])
    for name, values in times.items():
        median = statistics.median(values)
        requests = statistics.median(calls[name])
        print(f"{name:<24}{median:>10.1f}{requests:>10.0f}{mine / median:>10.2f}")


if __name__ == "__main__":
    main()
