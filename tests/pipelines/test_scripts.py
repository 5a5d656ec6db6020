"""Scripts and notebooks run as their authors would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import IO

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.loading import load_job
from mlflow_perf.pipelines.read_graph import read_graph

WritePipeline = Callable[[str], Path]
ONE = """
    @dsl.pipeline()
    def one(rows: int = 3):
        a = make(rows=rows)
"""


def test_a_notebook_runs_its_cells(write_pipeline: WritePipeline, tmp_path: Path) -> None:
    """%%writefile writes, other magics are left out, and the submitted job is taken."""
    head = write_pipeline("").read_text().replace("Path(__file__).parent", 'Path(".").resolve()')
    cells = [
        "%load_ext autoreload\nname = 'written.txt'",
        "%%writefile {name}\nhello",
        head + "\n!pip install nothing\n@dsl.pipeline()\ndef p():\n    a = make(rows=3)\n",
        "from azure.ai.ml import MLClient\njob = MLClient(None).jobs.create_or_update(p())\njob",
    ]
    notebook = {"cells": [{"cell_type": "code", "source": [text]} for text in cells]}
    path = tmp_path / "pipe.ipynb"
    path.write_text(json.dumps(notebook))
    job, _ = load_job(str(path), {})
    assert list(job.jobs) == ["a"]
    assert (tmp_path / "written.txt").read_text() == "hello"


def test_a_script_finds_files_beside_it(
    write_pipeline: WritePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths start at the current folder, as in Python, else at the script's own."""
    path = write_pipeline('step = load_component("make/component.yaml")\n' + dedent(ONE))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_job(str(path), {})[0].display_name == "one"
    assert Path.cwd() == tmp_path / "elsewhere"
    monkeypatch.chdir(tmp_path.parent)
    assert load_job(f"{tmp_path.name}/pipe.py", {})[0].display_name == "one"


JOB = """\
type: command
command: python train.py
code: ./src
environment: azureml:x:1
"""


@pytest.mark.parametrize("moves", [False, True])
def test_a_loaded_job_finds_its_code_from_any_folder(
    moves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths in a YAML file start at its folder, also after the script has left that folder."""
    (tmp_path / "src").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job.yml").write_text(JOB)
    lines = ["from azure.ai.ml import load_job", "job = load_job('job.yml')"]
    if moves:
        lines.insert(0, f"import os; os.chdir({str(tmp_path)!r})")
    path = tmp_path / "submit.py"
    path.write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path / "elsewhere")
    (step,) = read_graph(load_job(str(path), {})[0], source=path).steps.values()
    assert step.code == tmp_path / "src"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        # azureml-mlflow brings a package `azureml`, without `core`.
        ("azureml.core", r"line 1 imports azureml(\.core)?: the first SDK of Azure ML"),
        ("azure.nothing.here", "imports azure.nothing, which is not installed: pip install azure"),
        ("numqy", "imports numqy, which is not installed: pip install numqy"),
    ],
)
def test_a_missing_module_is_named(tmp_path: Path, module: str, message: str) -> None:
    """The message names what the file imports, not azure-ai-ml, which is there."""
    path = tmp_path / "file.py"
    path.write_text(f"import {module}")
    with pytest.raises(PipelineError, match=message):
        load_job(str(path), {})


def _load_alone(
    path: Path, code: str, errors: int | IO[str] = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run code that loads a pipeline in a process of its own.

    A child of the script that went on would go on with the tests.
    """
    imports = "import sys; from mlflow_perf.pipelines.loading import load_job, load_jobs; "
    return subprocess.run(
        [sys.executable, "-c", imports + code, str(path)],
        stdout=subprocess.PIPE, stderr=errors, text=True, check=True,
    )  # fmt: skip


@pytest.mark.parametrize("end", ["client.jobs.create_or_update(one())", "# a pipeline by its name"])
def test_what_a_script_forks_ends_where_the_script_ends(
    write_pipeline: WritePipeline, end: str
) -> None:
    """As with Python: a child leaves the jobs to its parent, which learns how it ended."""
    text = f"""
        import os, sys
        from azure.ai.ml import MLClient
        client = MLClient(None, "subscription", "group", "workspace")

        @dsl.pipeline()
        def one():
            if os.fork() == 0:
                raise SystemExit(0)
            os.wait()
            a = make(rows=3)

        def leave(code):
            sys.exit(code)

        def fail():
            1 / 0

        {end}
        for way in (bool, lambda: leave(0), lambda: leave(3), lambda: leave("no data"), fail):
            child = os.fork()
            if child == 0:
                way()
                break  # to the end of the script
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """
    done = _load_alone(write_pipeline(dedent(text)), "load_job(sys.argv[1], {}); print('loaded')")
    assert done.stdout.split() == ["0", "0", "3", "1", "1", "loaded"]
    said = done.stderr.splitlines()
    assert "no data" in said
    assert said[-1] == "ZeroDivisionError: division by zero"


def test_what_a_script_forks_ends_as_python_ends_it(
    write_pipeline: WritePipeline, tmp_path: Path
) -> None:
    """Its threads, exit functions and open files are finished; the code of the jobs stays."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a")
    text = """
        import atexit, os, sys, threading, time
        from azure.ai.ml import MLClient, command
        client = MLClient(None, "subscription", "group", "workspace")
        job = command(command="cat a.py", code=str(HERE / "code"), environment="azureml:e@latest")
        client.jobs.create_or_update(job)
        if os.fork() == 0:
            threading.Thread(target=lambda: (time.sleep(0.5), print("thread"))).start()
            atexit.register(print, "exit")
            (HERE / "kept").open("w").write("file")
            kept = (HERE / "open").open("w")
            kept.write("open")
            sys.exit(0)
        os.wait()
    """
    done = _load_alone(
        write_pipeline(dedent(text)),
        "step, = load_jobs(sys.argv[1], {})[0][0].read().steps.values(); "
        "print((step.code / 'a.py').read_text(), step.code)",
    )
    *others, last = done.stdout.splitlines()
    assert others == ["thread", "exit"]
    assert (tmp_path / "open").read_text() == "open"
    found, folder = last.split()
    assert found == "a"
    assert not Path(folder).exists()


def test_what_a_script_arms_ends_with_it(write_pipeline: WritePipeline) -> None:
    """A watchdog of its submission would end the jobs that run after it."""
    text = """
        import faulthandler, signal
        from azure.ai.ml import MLClient
        signal.alarm(1000)
        faulthandler.dump_traceback_later(1.0, exit=True)
        MLClient(None, "subscription", "group", "workspace").jobs.create_or_update(make(rows=3))
    """
    done = _load_alone(
        write_pipeline(dedent(text)),
        "import signal, time; load_jobs(sys.argv[1], {}); "
        "print(signal.getitimer(signal.ITIMER_REAL)); time.sleep(1.5)",
    )
    assert done.stdout.split("\n")[-2] == "(0.0, 0.0)"


def test_the_magic_behind_an_assignment_is_named(tmp_path: Path) -> None:
    """It is no Python, and the place is told once."""
    path = tmp_path / "pipe.ipynb"
    cells = [{"cell_type": "code", "source": [text]} for text in ("a = 1", "a = 2\nfiles = !ls")]
    path.write_text(json.dumps({"cells": cells}))
    with pytest.raises(PipelineError) as told:
        load_job(str(path), {})
    assert str(told.value) == (
        f"{path}, cell 2, line 2 fails: SyntaxError: invalid syntax "
        "(`!` and `%` behind a `=` are IPython's: write it in Python)"
    )


def test_what_a_script_writes_to_dev_stderr_stays(
    write_pipeline: WritePipeline, tmp_path: Path
) -> None:
    """It opens the file anew; what the command says afterwards goes behind that."""
    path = write_pipeline(dedent(ONE) + "print('theirs', file=open('/dev/stderr', 'w'))\n")
    with (tmp_path / "errors").open("w") as errors:
        _load_alone(path, "load_job(sys.argv[1], {}); print('ours', file=sys.stderr)", errors)
    assert (tmp_path / "errors").read_text().splitlines()[-2:] == ["theirs", "ours"]
