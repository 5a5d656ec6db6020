"""What is wrong with the YAML of a job is said with its line and its true reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("azure.ai.ml")

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.loading import load_job

STEP = "type: pipeline\njobs:\n  b: {command: x, environment: 'azureml:e@latest'}\n  a:\n"
COMMAND = f"{STEP}    command: x\n    environment: azureml:e@latest\n"
LONE = "type: command\ncommand: x\nenvironment: azureml:e@latest\n"
TWO = "${{parent.inputs.x}}-${{parent.inputs.y}}"
CONTROL = "    type: do_while\n    body: ${{parent.jobs.b}}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{COMMAND}    resources:\n      instance_count: '${{{{parent.inputs.n}}}}'\n",
         "8: jobs.a.resources.instance_count: Not a valid integer."),
        (f"{STEP}    environment: azureml:e@latest\n    command: [x, y]\n",
         "6: jobs.a.command: must be a text, not ['x', 'y']."),
        ("type: pipeline\njobs: [x]\n", "2: jobs: must have the name of each step before its"),
        (f"{COMMAND}    outputs: {{d: {{type: '${{{{parent.inputs.kind}}}}', path: [1]}}}}\n",
         "7: jobs.a.outputs.d"),
        (f"{COMMAND}    inputs: {{b: '{TWO}'}}\n",
         f"7: {TWO}: a value can hold one expression only."),
        ("type: pipeline\ninputs:\n  d: {type: integr}\njobs: {}\n",
         "3: inputs.d.type: Value 'integr' passed is not in set ['uri_file', 'uri_folder']"),
        (f"{LONE}retry_settings: {{max_retries: 2}}\n", "4: retry_settings: Unknown field."),
        (f"{STEP}{CONTROL}", "4: jobs.a is of type do_while, which is control flow: write its"),
        (STEP, "4: jobs.a must have the fields of a step, not None."),
        (f"{STEP}    command: x\n  1: {{}}\n", "2: the name of a step is 1 for YAML: put it in"),
        (f"{COMMAND}    inputs: {{day: 2020-01-01}}\n",
         "7: jobs.a.inputs.day: 2020-01-01 is a date for YAML: put it in quotes."),
        (f"{COMMAND}    inputs: {{x: '${{{{parent.jobs.b.output.o}}}}'}}\n",
         "7: jobs.a.inputs.x: it uses parent.jobs.b.output.o: a binding is parent.inputs.NAME or"),
        ("name: s\ncreate_job: {type: pipeline}\n", "2: a schedule: give the job that it starts."),
    ],
)  # fmt: skip
def test_a_fault_has_its_line_its_field_and_its_reason(
    tmp_path: Path, text: str, told: str
) -> None:
    """azure-ai-ml lists what keeps a step from being of any kind, or fails without a reason."""
    path = tmp_path / "bad.yml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=re.escape(f"bad.yml, line {told}")):
        load_job(str(path), {})


@pytest.mark.parametrize("kind", ["", "    type: command\n"])
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("limits: {timeout: 1h}", "limits.timeout: must be a whole number, not '1h'."),
        ("resources: {instance_count: two}", "resources.instance_count: must be a whole number"),
        ("enviroment_variables: {A: b}",
         "enviroment_variables: a command has no such field (did you mean 'environment_variables'"),
        ("retry_settings: {}", "retry_settings: a command has no such field: use --retries."),
        ("description: {a: 1}", "description: must be a text, not {'a': 1}."),
        ("display_name: [x]", "display_name: must be a text, not ['x']."),
        ("environment: 5", "environment: must be a text, or fields with values, not 5."),
        ("tags: [a, b]", "tags: must be fields with values, not ['a', 'b']."),
        ("inputs: {1: a}", "inputs: the name 1 is no text for YAML: put it in quotes."),
        ("inputs: {d: {type: integr}}", "inputs.d.type: 'integr' is not known (did you mean 'int"),
        ("inputs: {d: {type: uri_file, path: x, mode: fly}}",
         "inputs.d.mode: 'fly' is not known (there is: direct, download, eval_download,"),
        ("outputs: {d: {type: uri_fold}}", "outputs.d.type: 'uri_fold' is not known (did you"),
        ("outputs: {d: {mode: fly}}", "outputs.d.mode: 'fly' is not known (there is: direct, mou"),
        ("inputs: {d: {type: uri_file, path: 5}}", "inputs.d.path: must be a text, not 5."),
        ("distribution: {type: pytorch, nodes: 2}", "distribution.nodes: it has no such field"),
        ("distribution: {type: mpii}", "distribution.type: 'mpii' is not known (did you mean 'mpi"),
        ("distribution: {type: pytorch, process_count_per_instance: two}",
         "distribution.process_count_per_instance: must be a whole number, not 'two'."),
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_command_is_named_whatever_else_it_might_be(
    tmp_path: Path, kind: str, fault: str, told: str
) -> None:
    """Of the same fault azure-ai-ml says other things with and without the type."""
    path = tmp_path / "bad.yml"
    text = f"{STEP}    command: x\n" + ("" if "environment: 5" in fault else
        "    environment: azureml:e@latest\n")  # fmt: skip
    path.write_text(f"{text}{kind}    {fault}\n")
    line = 1 + (text + kind).count("\n")
    with pytest.raises(PipelineError, match=re.escape(f"bad.yml, line {line}: jobs.a.{told}")):
        load_job(str(path), {})


def test_a_component_is_no_job(tmp_path: Path) -> None:
    """azure-ai-ml finds fault with the type of its inputs."""
    path = tmp_path / "component.yml"
    path.write_text(f"{LONE}inputs:\n  n: {{type: integer}}\n")
    with pytest.raises(PipelineError, match="is a component: give a pipeline that uses it"):
        load_job(str(path), {})
    path.write_text(f"{STEP}    command: x\ninputs:\n  n: {{type: integer}}\n")
    with pytest.raises(PipelineError, match="is a component: give a pipeline that uses it"):
        load_job(str(path), {})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "c.yml has no fields of a component."),
        (b"name: \x80", "c.yml cannot be read: it is no text in UTF-8."),
    ],
)
def test_a_components_file_that_is_none_is_named(tmp_path: Path, content: bytes, told: str) -> None:
    """azure-ai-ml does not say which file it failed at."""
    path = tmp_path / "bad.yml"
    path.write_text("type: pipeline\njobs:\n  a:\n    component: ./c.yml\n")
    (tmp_path / "c.yml").write_bytes(content)
    match = r"bad\.yml, line 4: jobs\.a\.component: .*" + re.escape(told)
    with pytest.raises(PipelineError, match=match):
        load_job(str(path), {})
