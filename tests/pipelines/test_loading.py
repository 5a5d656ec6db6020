"""Pipeline files and --set: what is found, and each way to be wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.loading import load_job, parse_settings

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
    with pytest.raises(PipelineError, match="several pipelines \\(one, two\\)"):
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
    with pytest.raises(PipelineError, match=r"several pipelines \(inner, outer\)"):
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
    assert load_job(path, {"rows": "5"})[0].inputs["rows"] == 5
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
    ],
)
def test_a_yaml_error_has_its_line(tmp_path: Path, text: str, message: str) -> None:
    """A YAML file that cannot be read is named with the line and the field."""
    path = tmp_path / "bad.yml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=re.escape(message)):
        load_job(str(path), {})
