"""Pipeline files and --set: what is found, and each way to be wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlflow_perf.cli import main
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.loading import load_job, parse_settings
from mlflow_perf.pipelines.read_graph import read_graph

WritePipeline = Callable[[str], Path]
ONE = """
    @dsl.pipeline()
    def one(rows: int = 3, share: float = 0.5, kind: str = "a", fast: bool = False):
        a = make(rows=rows, rate=share, kind=kind, fast=fast)
"""


def test_settings_are_typed_as_the_pipeline_declares(write_pipeline: WritePipeline) -> None:
    """A value reaches azure-ai-ml as the type of its annotation."""
    texts = parse_settings(["rows=9", "share=1", "kind=b", "fast=true"])
    job, _ = load_job(str(write_pipeline(ONE)), texts)
    found = {name: value._data for name, value in job.inputs.items()}
    assert found == {"rows": 9, "share": 1.0, "kind": "b", "fast": True}


def test_a_path_is_set_as_an_input(write_pipeline: WritePipeline, tmp_path: Path) -> None:
    """A value of an input that is a folder or a file is a path from here."""
    (tmp_path / "raw").mkdir()
    path = write_pipeline("""
        @dsl.pipeline()
        def one(raw: Input(type="uri_folder")):
            a = make(folder=raw)
    """)
    job, _ = load_job(str(path), {"raw": str(tmp_path / "raw")})
    assert (job.inputs["raw"].type, job.inputs["raw"].path) == ("uri_folder", str(tmp_path / "raw"))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["rows"], "must be key=value"),
        (["=3"], "must be key=value"),
        (["rows=1", "rows=2"], "given twice"),
    ],
)
def test_a_setting_that_is_none(texts: list[str], message: str) -> None:
    """A text that sets nothing, or sets twice, is refused."""
    with pytest.raises(PipelineError, match=message):
        parse_settings(texts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rwos": "3"}, r"--set rwos: no such input \(did you mean 'rows'\?\)"),
        ({"rows": "x"}, "--set rows is 'x', but must be a whole number"),
        ({"fast": "perhaps"}, "must be true or false"),
    ],
)
def test_a_wrong_setting_is_named(
    write_pipeline: WritePipeline, settings: dict[str, str], message: str
) -> None:
    """An unknown key comes with the nearest one, a wrong value with its type."""
    with pytest.raises(PipelineError, match=message):
        load_job(str(write_pipeline(ONE)), settings)


TWO = ONE + ONE.replace("def one", "def two")


def test_one_of_several_is_picked_by_name(write_pipeline: WritePipeline) -> None:
    """FILE:NAME runs one of several; without a name they are listed."""
    path = write_pipeline(TWO)
    assert load_job(f"{path}:two", {})[0].component.name == "two"
    with pytest.raises(PipelineError, match="several pipelines or jobs \\(one, two\\)"):
        load_job(str(path), {})
    with pytest.raises(PipelineError, match="no pipeline 'tow'"):
        load_job(f"{path}:tow", {})


def test_a_pipeline_with_an_underscore_is_a_part(write_pipeline: WritePipeline) -> None:
    """What is only nested in another pipeline need not be named; it may be."""
    path = write_pipeline(ONE + ONE.replace("def one", "def _part"))
    assert load_job(str(path), {})[0].component.name == "one"
    assert load_job(f"{path}:_part", {})[0].component.name == "_part"


def _written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "file.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('at import')", r"file\.py, line 1 fails: RuntimeError: at import"),
        ("import not_there_at_all", "imports not_there_at_all, which is not installed"),
        ("import sys; sys.exit(0)", r"file\.py, line 1 fails: SystemExit: 0"),
        ("x = 1", "defines no pipeline"),
        ("def broken(:", "SyntaxError"),
        (
            (
                "from __future__ import annotations\nfrom azure.ai.ml import dsl\n"
                "@dsl.pipeline()\ndef p(n: int = 1):\n    pass\n"
            ),
            "cannot read it under `from __future__ import annotations`",
        ),
        (
            "from azure.ai.ml import dsl\n@dsl.pipeline()\ndef p():\n    raise ValueError('x')\n",
            "The pipeline p of .* fails: ValueError: x",
        ),
    ],
)
def test_a_file_that_is_no_pipeline(tmp_path: Path, text: str, message: str) -> None:
    """A file that fails or defines nothing is named with its own error."""
    with pytest.raises(PipelineError, match=message):
        load_job(_written(tmp_path, text), {})


def test_a_pipeline_that_another_calls_is_a_part_of_it(write_pipeline: WritePipeline) -> None:
    """Nested pipelines need no name of their own; two that know nothing of each other do."""
    nested = """
        @dsl.pipeline()
        def inner(rows: int = 3):
            a = make(rows=rows)

        @dsl.pipeline()
        def outer():
            parts = [inner(rows=n) for n in (1, 2)]
    """
    job, _ = load_job(str(write_pipeline(nested)), {})
    assert job.display_name == "outer"
    apart = nested.replace("inner(rows=n)", "make.inner")
    with pytest.raises(PipelineError, match=r"several pipelines or jobs \(inner, outer\)"):
        load_job(str(write_pipeline(apart)), {})


def test_a_file_stands_in_for_no_other_module(tmp_path: Path) -> None:
    """A pipeline in `colorsys.py`, or `mlflow.py`, is not what others get by that name."""
    import colorsys

    path = tmp_path / "colorsys.py"
    path.write_text("job = 1")
    with pytest.raises(PipelineError, match="defines no pipeline"):
        load_job(str(path), {})
    assert sys.modules["colorsys"] is colorsys


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The path is in the message."""
    with pytest.raises(PipelineError, match=r"gone\.py does not exist"):
        load_job(str(tmp_path / "gone.py"), {})


def test_a_finished_job_takes_settings(write_pipeline: WritePipeline) -> None:
    """A file may define the finished job beside its function; --set changes its inputs."""
    path = str(write_pipeline(ONE + "\n    pipeline_job = one(rows=4)\n"))
    assert load_job(path, {})[0].inputs["rows"]._data == 4
    assert load_job(path, {"rows": "5"})[0].inputs["rows"]._data == 5
    with pytest.raises(PipelineError, match=r"--set rwos: .* has no such input \(did you mean"):
        load_job(path, {"rwos": "5"})
    assert load_job(f"{path}:one", {"rows": "6"})[0].inputs["rows"]._data == 6


def test_a_function_that_builds_the_pipeline_is_named(write_pipeline: WritePipeline) -> None:
    """FILE:FUNCTION calls a factory, with --set as its arguments."""
    path = write_pipeline("""
        def build(rows: int = 3):
            @dsl.pipeline()
            def inner(n: int):
                a = make(rows=n)
            return inner(n=rows)
    """)
    assert load_job(f"{path}:build", {"rows": "8"})[0].inputs["n"]._data == 8
    with pytest.raises(PipelineError, match=r"if a function builds it, name it \(.*:FUNCTION\)"):
        load_job(str(path), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type: pipeline\njobs:\n  a:\n    type: command\n   b: x\n", "line 5 is no YAML"),
        ("type: pipeline\njobs:\n  a:\n    type: command\n", "line 3: jobs.a"),
        ("just text", "cannot be read as a job"),
        (
            "type: pipeline\njobs:\n  a:\n    type: command\n    component: ./none.yml\n",
            "bad.yml, line 5: jobs.a.component: No such file or directory: ",
        ),
        (
            "type: pipeline\njobs:\n  a:\n    type: command\n    command: x\n    code: ../nope\n",
            "bad.yml, line 6: jobs.a.code: there is no ../nope.",
        ),
    ],
)
def test_a_yaml_error_has_its_line(tmp_path: Path, text: str, message: str) -> None:
    """A YAML file that cannot be read is named with the line and the field."""
    path = tmp_path / "bad.yml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=re.escape(message)):
        load_job(str(path), {})


COMMAND = 'command(command="echo hi", environment="azureml:e@latest", inputs={"x": 7})'
JOB = COMMAND.replace("command(c", "CommandJob(c")
SUBMITTED = [
    f"client.jobs.create_or_update({COMMAND})",
    f"client.create_or_update({COMMAND})",
    f"client.jobs.create_or_update({JOB})",
    'client.jobs.create_or_update(load_job("job.yml"))',
    f"job = {COMMAND}",
    f"job = {JOB}",
    'job = load_job("job.yml")',
]
IMPORTS = (
    "from azure.ai.ml import MLClient, command, load_job\n"
    "from azure.ai.ml.entities import CommandJob\n"
    "client = MLClient(None)\n"
)


@pytest.mark.parametrize("suffix", [".py", ".ipynb"])
@pytest.mark.parametrize("line", SUBMITTED)
def test_a_command_job_of_a_script_is_a_graph_of_one_step(
    tmp_path: Path, line: str, suffix: str
) -> None:
    """A command runs whether a script submits it or ends with it, in each of its classes."""
    (tmp_path / "job.yml").write_text(
        "type: command\ncommand: echo hi\nenvironment: azureml:e@latest\ninputs: {x: 7}\n"
    )
    path = tmp_path / f"file{suffix}"
    cells = [{"cell_type": "code", "source": IMPORTS + line}]
    path.write_text(IMPORTS + line if suffix == ".py" else json.dumps({"cells": cells}))
    job, _ = load_job(str(path), {"x": "8"})
    step = read_graph(job, source=path).steps["file"]
    assert (step.command, step.values) == ("echo hi", {"x": 8})


def test_a_command_job_keeps_its_experiment(tmp_path: Path) -> None:
    """What the class of a job has and that of a node has not is kept."""
    keep = JOB.replace("}", '}, experiment_name="mine", environment_variables={"A": "1"}')
    job, path = load_job(_written(tmp_path, f"{IMPORTS}job = {keep}"), {})
    graph = read_graph(job, source=path)
    assert (graph.experiment, graph.steps["file"].environment) == ("mine", {"A": "1"})


def test_a_command_beside_a_pipeline_is_one_of_its_steps(tmp_path: Path) -> None:
    """A command that a function uses is not run by itself; of several others one is named."""
    part = f"{IMPORTS}from azure.ai.ml import dsl\na = {COMMAND}\n"
    flow = "@dsl.pipeline()\ndef p():\n    one = a()\n"
    assert load_job(_written(tmp_path, part + flow), {})[0].display_name == "p"
    inside = flow.replace("\n", "\n    ")
    path = _written(tmp_path, f"{part}def build():\n    {inside}\n    return p()\n")
    with pytest.raises(PipelineError, match="defines no pipeline: if a function builds it"):
        load_job(path, {})
    assert load_job(f"{path}:build", {})[0].display_name == "p"
    path = _written(tmp_path, f"{part}b = {COMMAND}\n")
    with pytest.raises(PipelineError, match=r"several pipelines or jobs \(a, b\)"):
        load_job(path, {})
    assert load_job(f"{path}:b", {})[0].type == "command"


def test_a_node_that_is_a_pipeline_is_read_as_one(tmp_path: Path) -> None:
    """A pipeline component that a script calls and submits is a pipeline of its own."""
    (tmp_path / "inner.yml").write_text(
        "type: pipeline\nname: inner\ninputs: {n: {type: integer}}\njobs:\n"
        "  a: {type: command, command: echo, environment: {image: u}}\n"
    )
    made = 'from azure.ai.ml import load_component\njob = load_component("inner.yml")(n=4)\n'
    job, path = load_job(
        _written(tmp_path, f"{IMPORTS}{made}client.jobs.create_or_update(job)"), {}
    )
    graph = read_graph(job, source=path)
    assert (list(graph.steps), graph.inputs) == (["a"], {"n": 4})


def test_other_jobs_are_refused_by_their_kind(tmp_path: Path) -> None:
    """A finished job that cannot run here is named with what to do instead."""
    made = (
        "from azure.ai.ml import automl, Input\n"
        'job = automl.classification(training_data=Input(type="mltable", path="."), '
        'target_column_name="y", primary_metric="accuracy", compute="c")\n'
    )
    job, path = load_job(_written(tmp_path, made), {})
    with pytest.raises(PipelineError, match="of type automl, which is run by the service"):
        read_graph(job, source=path)
    with pytest.raises(PipelineError, match=r"--set x: .* has no such input"):
        load_job(str(path), {"x": "1"})


def test_a_job_without_a_command_is_refused(tmp_path: Path) -> None:
    """azure-ai-ml accepts it; here nothing would run, and the step would end as FINISHED."""
    made = f"{IMPORTS}job = command(environment='azureml:e@latest')"
    job, path = load_job(_written(tmp_path, made), {})
    with pytest.raises(PipelineError, match="Step 'file' has no command"):
        read_graph(job, source=path)


@pytest.mark.parametrize(
    "guard",
    [
        'if __name__ == "__main__":',
        'if __name__=="__main__":',
        'if "__main__" == __name__:',
        "if (__name__ == '__main__'):",
        'if __name__ in ("__main__", "job"):',
        'if True and __name__ == "__main__":',
    ],
)
def test_a_main_guard_is_known_by_its_meaning(tmp_path: Path, guard: str) -> None:
    """What a script submits under its guard is run, however the guard is spelled."""
    body = f"def main():\n    client.jobs.create_or_update({COMMAND})\n{guard}\n    main()\n"
    path = tmp_path / "file.py"
    path.write_text(IMPORTS + body, encoding="utf-8-sig")
    assert load_job(str(path), {})[0].type == "command"


@pytest.mark.parametrize(
    "line", ["job.resources = Odd()", "job = Odd()\nclient.jobs.create_or_update(job)\nx = y"]
)
def test_an_unforeseen_shape_is_one_sentence(tmp_path: Path, line: str) -> None:
    """Whatever objects a file hands over, the command ends with 2 and no traceback."""
    odd = "class Odd:\n    def __getattr__(self, name):\n        raise RuntimeError('odd')\n"
    path = _written(tmp_path, f"{IMPORTS}{odd}job = {COMMAND}\n{line}\n")
    done = CliRunner().invoke(main, ["pipeline", "run", path])
    assert done.exit_code == 2
    assert re.fullmatch(r"mlflow-perf: .*file\.py.*: RuntimeError: odd", done.output.strip())
