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
CONTROL = "    type: do_while\n    body: ${{parent.jobs.b}}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{COMMAND}    limits: {{timeout: 1h}}\n", "7: jobs.a.limits.timeout: Not a valid int"),
        (f"{COMMAND}    resources:\n      instance_count: '${{{{parent.inputs.n}}}}'\n",
         "8: jobs.a.resources.instance_count: Not a valid integer."),
        (f"{STEP}    environment: azureml:e@latest\n    command: [x, y]\n",
         "6: jobs.a.command: Not a valid string."),
        (f"{COMMAND}    enviroment_variables: {{A: b}}\n",
         "7: jobs.a.enviroment_variables: Unknown field."),
        (f"{COMMAND}    type: command\n    limits: {{timeout: 1h}}\n",
         "8: jobs.a.limits.timeout: Not a valid integer."),
        (f"{COMMAND}    type: command\n    comand: 1\n",
         "8: jobs.a.comand: a command has no such field (did you mean 'command'?)."),
        ("type: pipeline\ninputs:\n  d: {type: integr}\njobs: {}\n",
         "3: inputs.d.type: Value 'integr' passed is not in set ['uri_file', 'uri_folder']"),
        (f"{LONE}retry_settings: {{max_retries: 2}}\n", "4: retry_settings: Unknown field."),
        (f"{STEP}{CONTROL}", "4: jobs.a is of type do_while, which is control flow: write its"),
        (STEP, "4: jobs.a must have the fields of a step, not None."),
        (f"{STEP}    command: x\n  1: {{}}\n", "2: the name of a step is 1 for YAML: put it in"),
        (f"{COMMAND}    inputs: {{day: 2020-01-01}}\n",
         "7: jobs.a.inputs.day: 2020-01-01 is a date for YAML: put it in quotes."),
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


def test_a_component_is_no_job(tmp_path: Path) -> None:
    """azure-ai-ml finds fault with the type of its inputs."""
    path = tmp_path / "component.yml"
    path.write_text(f"{LONE}inputs:\n  n: {{type: integer}}\n")
    with pytest.raises(PipelineError, match="is a component: give a pipeline that uses it"):
        load_job(str(path), {})
