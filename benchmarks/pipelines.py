"""Hand published pipelines over as they are: how many run, and why the others do not.

`python -m benchmarks pipelines --data FOLDER` takes a folder of cloned repositories. Every pipeline
job and command job (`.yml`), notebook and script in it that uses azure-ai-ml is given to
`mlflow-perf pipeline run`, in the folder where its author would start it. The last column says
whether the reason was found again in the pipeline's own text.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_LIMIT_SEC = 300.0
_JOB = re.compile(
    r"^\$schema:.*(pipelineJob|commandJob|sweepJob|sparkJob|parallelJob)\.schema|^type: *pipeline",
    re.M,
)
_COMPONENT = re.compile(r"^\$schema:.*[cC]omponent\.schema", re.M)
_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): .*?'([\w.]+)'|imports ([\w.]+), which")
_NETWORK = re.compile(
    r"cannot be downloaded|resolve|ConnectionError|URLError|Max retries|Connection refused|"
    r"NameResolution|connection error|getaddrinfo", re.I,
)  # fmt: skip
# A part of the reason → what the pipeline's own text must contain for it to be true. It is also the
# kind under which the refused pipelines are counted.
_PROOFS = {
    "Environment schema": r"environment: *<",
    "type sweep": r"sweep",
    "type parallel": r"parallel",
    "prompt flow": r"flow",
    "type spark": r"spark",
    "type automl": r"automl",
    "control flow": r"condition|do_while|parallel_for",
    "registry": r"registr",
    "registered component": r"azureml:|components\.get|component=",
    "takes the component": r"components\.get|load_component\(",
    "calls MLClient": r"ml_?client|workspace_ml",
    "takes wasbs": r"wasbs",
    "takes azureml": r"azureml:|\.data\.get|Data\(|model",
    "takes abfss": r"abfss",
    "distributed with tensorflow": r"tensorflow",
    "distributed with ray": r"ray",
    "takes its code from": r"git|azureml:",
    "is not defined": r"______|ml_client",
    "it takes arguments": r"argparse|sys\.argv",
    "first SDK": r"azureml\.|azureml-",
    "azure-ml-component": r"azure\.ml\.component",
    "expression": r"\*|\+|-",
}


def main() -> int:
    """Run them all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of cloned repositories")
    parser.add_argument("--only", default="", help="a part of the path")
    parser.add_argument("--map", action="append", default=[], help="as `pipeline run --map`")
    parser.add_argument("--environments", default="own", choices=["own", "here"])
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    options = parser.parse_args()
    import azure.ai.ml  # noqa: F401 - imported once, for all the forks
    import mlflow
    import parsl  # noqa: F401

    work = Path(tempfile.mkdtemp(prefix="published-"))
    # Making the tables of a store takes seconds: all share one.
    (work / "demo").mkdir()
    mlflow.MlflowClient(f"sqlite:///{work}/demo/mlflow.db").create_experiment("none")

    extra = [word for text in options.map for word in ("--map", text)]
    extra += ["--environments", options.environments]
    rows = []
    for path in sorted(_list_published(options.data)):
        shown = str(path.relative_to(options.data))
        if options.only in shown:
            rows.append({"pipeline": shown, **_hand_over(path, options.data, work, extra)})
            row = rows[-1]
            print(f"{row['outcome']:<9} {row['true']:<4} {shown}: {row['reason']}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    counts = Counter(str(row["outcome"]) for row in rows)
    kinds = Counter(
        next((part for part in _PROOFS if part in row["reason"]), "another reason")
        for row in rows
        if row["outcome"] == "refused"
    )
    false = sum(row["true"] in ("no", "?") for row in rows)
    print(f"\n{len(rows)} published pipelines: {dict(counts)}; reasons not proven: {false}")
    for kind, number in kinds.most_common():
        print(f"{number:>4} refused: {kind}")
    return 0


def _list_published(folder: Path) -> Iterator[Path]:
    """Yield the files that define or submit a job."""
    for path in folder.rglob("*"):
        if path.suffix in (".yml", ".yaml") and path.is_file():
            text = path.read_text(errors="replace")
            if _JOB.search(text) and not _COMPONENT.search(text):
                yield path
        elif path.suffix in (".ipynb", ".py") and path.is_file():
            text = path.read_text(errors="replace")
            uses = "azure.ai.ml" in text or "azure.ml.component" in text
            if uses and re.search(r"@(dsl\.)?pipeline|@?Pipeline\(", text):
                yield path


def _hand_over(path: Path, data: Path, work: Path, extra: list[str]) -> dict[str, str]:
    """Run one in a fork of this process, and return its outcome, reason and proof."""
    root = data / path.relative_to(data).parts[0]
    folder = root if path.suffix == ".py" else path.parent
    log = work / "log"
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _run(path, folder, work, log, extra)
    status = None
    while status is None and time.monotonic() - began < _LIMIT_SEC:
        done, raw = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(raw) if done else None
        time.sleep(0.05)
    if status is None:
        os.killpg(pid, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    text = log.read_text(errors="replace")
    logs = "\n".join(p.read_text(errors="replace") for p in work.glob("demo/work/*/*/logs/*"))
    shutil.rmtree(work / "demo" / "work", ignore_errors=True)
    log.unlink()
    return _judge(path, status, text, logs)


def _run(path: Path, folder: Path, work: Path, log: Path, extra: list[str]) -> None:
    """Run the command in this fork, and end it."""
    os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(folder)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    from mlflow_perf.cli import main as command

    code = 99
    try:
        command(["pipeline", "run", str(path), "--to", str(work / "demo"), *extra])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def _judge(path: Path, status: int | None, text: str, logs: str) -> dict[str, str]:
    """Return what became of a pipeline, why, and whether its own text proves that."""
    lines = [line for line in text.splitlines() if line.startswith("mlflow-perf: ")]
    told = [line for line in lines if " failed: " in line] or lines[-1:]
    reason = told[0].removeprefix("mlflow-perf: ")[:400] if told else text.strip()[-300:]
    everything = f"{text}\n{logs}"
    if status == 0:
        return {"outcome": "runs", "true": "", "reason": ""}
    if status is None:
        return {"outcome": "time", "true": "?", "reason": f"longer than {_LIMIT_SEC:g} s"}
    sources = [path, *path.parent.rglob("*.y*ml"), *path.parent.rglob("*.py")]
    own = "\n".join(p.read_text(errors="replace") for p in sources[:200] if p.is_file())
    if "cannot be downloaded" in reason:
        return {"outcome": "data", "true": "yes", "reason": reason}
    if status == 2:
        for part, proof in _PROOFS.items():
            if part in reason:
                found = re.search(proof, own, re.I)
                return {"outcome": "refused", "true": "yes" if found else "no", "reason": reason}
    if _MODULE.search(everything) or "cannot be made" in everything:
        missing = _MODULE.search(everything)
        what = f"{missing[1] or missing[2]} is not installed; " if missing else ""
        return {"outcome": "packages", "true": "yes", "reason": what + reason}
    # Code for an older pandas than the curated environment's stand-in has.
    old = "'DataFrame' object has no attribute 'append'" in everything
    lacks = re.search(r"(\w+): (command )?not found|exit code 127|venv/bin/activate", everything)
    if old or lacks:
        return {"outcome": "packages", "true": "yes", "reason": reason}
    if _NETWORK.search(everything) or "Temporary failure in name resolution" in everything:
        return {"outcome": "data", "true": "yes", "reason": reason}
    return {"outcome": "refused" if status == 2 else "fails", "true": "?", "reason": reason}


if __name__ == "__main__":
    sys.exit(main())
