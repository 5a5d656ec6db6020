"""No secret of the job's environment, arguments or addresses is in what we write or say."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.nursery import Job

JOB = """
import sys
import mlflow_perf

with mlflow_perf.report("train", interval=0.05, scrape=sys.argv[1:2]) as perf:
    with perf.time("load"):
        sum(range(2_000_000))
    link = f"http://me:{''.join(sys.argv[2:3])}@host/?key={''.join(sys.argv[2:3])}"
    perf.add_counter(f"read {link}", 1)
    perf.add_attribute("source", [link])
    for _ in perf.steps(range(2), name=f"read {link}"):
        pass
    if "kill" in sys.argv:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
"""
SECRETS = ("env-7f3a91", "argument-7f3a91", "password-7f3a91", "query-7f3a91")


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Serve one gauge, and return an address that carries a key."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# TYPE queue gauge\nqueue 3\n")

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/metrics?key={SECRETS[3]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(python: Callable[..., Job], tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs Python with a secret in its environment, for the output."""

    def start(*argv: str, fork: bool = True) -> str:
        environ = {"API_TOKEN": SECRETS[0], "MLFLOW_PERF_DIR": str(tmp_path / "journals")}
        if fork:
            job = python(*argv, **environ)
            job.wait()
            return job.output + job.errors
        done = subprocess.run(
            [sys.executable, *argv], env=os.environ | environ, cwd=tmp_path, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout + done.stderr

    return start


def leaks(folder: Path) -> list[str]:
    """Return each secret that a file below the folder contains, with the file's path."""
    return [
        f"{secret} in {path.relative_to(folder)}"
        for path in folder.rglob("*")
        if path.is_file()
        for secret in SECRETS
        if secret.encode() in path.read_bytes()
    ]


@pytest.mark.e2e
@pytest.mark.usefixtures("store")
def test_a_run_holds_no_secret(run: Callable[..., str], tmp_path: Path, endpoint: str) -> None:
    """Neither metrics, tags, document, report and journal nor a message hold one."""
    (tmp_path / "job.py").write_text(JOB)
    # Not a fork: the kernel too shows this process's own arguments and environment.
    said = run("job.py", endpoint, f"--token={SECRETS[1]}", fork=False)
    assert (tmp_path / "artifacts").is_dir()
    assert b"queue" in b"".join(p.read_bytes() for p in tmp_path.rglob("node-0.json"))
    assert leaks(tmp_path) == []
    assert not [secret for secret in SECRETS if secret in said]


@pytest.mark.e2e
@pytest.mark.usefixtures("store")
def test_a_killed_job_leaves_no_secret(
    run: Callable[..., str], tmp_path: Path, endpoint: str
) -> None:
    """Neither the journal of a killed job nor the recovered report contains a secret."""
    (tmp_path / "job.py").write_text(JOB)
    run("job.py", endpoint, f"--token={SECRETS[1]}", "kill")
    assert [*(tmp_path / "journals").rglob("*.journal")]
    assert leaks(tmp_path) == []
    said = run("-m", "mlflow_perf", "recover")
    assert [*tmp_path.rglob("node-0.json")]
    assert leaks(tmp_path) == []
    assert not [secret for secret in SECRETS if secret in said]


@pytest.mark.e2e
@pytest.mark.usefixtures("store")
def test_a_wrapped_command_keeps_its_arguments_to_itself(
    run: Callable[..., str], tmp_path: Path
) -> None:
    """`mlflow-perf run` names the program, but not its arguments."""
    wrapped = [sys.executable, "-c", "pass", f"--token={SECRETS[1]}"]
    said = run("-m", "mlflow_perf", "run", "--", *wrapped)
    assert [*tmp_path.rglob("node-0.json")]
    assert leaks(tmp_path) == []
    assert not [secret for secret in SECRETS if secret in said]


@pytest.mark.e2e
@pytest.mark.usefixtures("store")
def test_a_message_about_an_endpoint_keeps_its_secrets(
    run: Callable[..., str], tmp_path: Path
) -> None:
    """An endpoint that is not there is named without its query; one with a password is refused."""
    (tmp_path / "job.py").write_text(JOB)
    said = run("job.py", f"http://127.0.0.1:9/metrics?key={SECRETS[3]}")
    assert "127.0.0.1:9" in said
    refused = run("job.py", f"http://me:{SECRETS[2]}@127.0.0.1:9/")
    assert "password" in refused.splitlines()[-1]
    # The traceback is the interpreter's; the message is ours.
    assert SECRETS[2] not in refused.splitlines()[-1]
    assert SECRETS[3] not in said
    assert leaks(tmp_path) == []
