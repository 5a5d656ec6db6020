"""What else `tests.fuzz.run` fuzzes: files of other systems and people, and what an agent sends."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.fuzz.mutators import mutated_json, mutated_lines, mutated_table, mutated_yaml

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

HISTORIES = (
    (
        b"task_id\thash\tname\tstatus\texit\tsubmit\tduration\trealtime\t%cpu\tpeak_rss\trchar\t"
        b"memory\n1\tab/12\tRNA:SORT (a)\tCOMPLETED\t0\t2026-11-20 10:00:00.000\t3m 20s\t2m\t"
        b"98.5%\t1.2 GB\t5 MB\t2 GB\n"
        b"2\tab/13\tRNA:SORT (b)\tFAILED\t137\t1763640000000\t10s\t-\t-\t0\t0\t-\n"
    ),
    (
        b"s\th:m:s\tmax_rss\tmax_vms\tio_in\tio_out\tmean_load\tcpu_time\trule_name\tthreads\t"
        b"input_size_mb\n12.5\t0:00:12\t105.2\t300.1\t1.5\t2.5\t98.0\t11.9\tsort\t4\t"
        b"{'a.txt': 1.5, 'b.txt': 2}\n3\t0:00:03\t-\tNA\t0\t0\t1\t2\tsort\t4\t7\n"
    ),
    (
        b"JobID|JobName|User|State|Submit|Start|Elapsed|ElapsedRaw|NNodes|AllocCPUS|TotalCPU|ReqMem|"
        b"MaxRSS|NTasks|MaxDiskRead|MaxDiskWrite\n"
        b"7|train|me|COMPLETED|2026-11-20T10:00:00|2026-11-20T10:00:09|1-02:03:04|93784|2|8|02:03.5|"
        b"4Gn||||\n7.batch|batch||COMPLETED|||1-02:03:04|93784|1|4|02:03.5||204800K|1|12.5M|0.1M\n"
        b"8|x|me|CANCELLED by 5|2026-11-20T10:00:00|Unknown|00:00:00|0|1|1|00:00:00|100Mc||||\n"
    ),
)
MACHINES = (
    b"name,vcpus,memory_gb,price_per_hour,gpus\nsmall,4,16,$0.20,\nlarge,32,128 GiB,1.60,2\n",
    b"VM size;CPU;RAM (MB);Cost\nD4;4;16384;0,2\n",
)
CONDA = b"""name: env
channels: [conda-forge]
dependencies:
- python=3.11
- pip>=23
- numpy=1.26.4=py311h_0
- conda-forge::pandas>=2
- cudatoolkit=11
- pip: [mlflow>=3.1, "x; python_version<'3'", "-r more.txt", "--index-url https://host/simple"]
"""
PIPELINE = b"""type: pipeline
display_name: train
experiment_name: e
inputs: {rows: 10, data: {type: uri_file, path: data.csv}}
outputs: {model: {type: uri_folder}}
settings: {default_compute: "azureml:cpu"}
jobs:
  prepare:
    type: command
    component: component.yml
    inputs: {rows: "${{parent.inputs.rows}}", data: "${{parent.inputs.data}}"}
    outputs: {made: {type: uri_folder}}
  train:
    type: command
    command: python train.py --in ${{inputs.made}} $[[--rate ${{inputs.rate}}]]
    code: .
    environment: {image: "python:3.11", conda_file: conda.yml}
    resources: {instance_count: 2}
    distribution: {type: mpi, process_count_per_instance: 2}
    limits: {timeout: 60}
    inputs: {made: "${{parent.jobs.prepare.outputs.made}}", rate: 0.5}
    outputs: {model: "${{parent.outputs.model}}"}
"""
COMPONENT = b"""$schema: https://azuremlschemas.azureedge.net/latest/commandComponent.schema.json
type: command
name: prepare
version: 1
display_name: Prepare
inputs:
  rows: {type: integer, default: 5, min: 1, max: 100}
  data: {type: uri_file}
  kind: {type: string, enum: [a, b], optional: true}
outputs: {made: {type: uri_folder}}
code: .
environment: azureml:registered@latest
command: >-
  python prepare.py --rows ${{inputs.rows}} --data ${{inputs.data}} --out ${{outputs.made}}
environment_variables: {A: 1}
"""


def histories() -> Target:
    """Nextflow's trace, Snakemake's benchmark and sacct's output, up to the figures of a run."""
    from mlflow_perf.histories import read_histories

    folder = _folder()

    def run(data: bytes) -> None:
        (folder / "trace.txt").write_bytes(data)
        for workflow in read_histories([folder / "trace.txt"]):
            for task in workflow.tasks:
                _check_finite(task.metrics | dict(task.params))
                assert task.started is None or abs(task.started) < 1e12, task

    return _target(run, list(HISTORIES), mutated_table)


def machines() -> Target:
    """A table of machines and prices."""
    from mlflow_perf.analysis.machines import choose_machine, read_machines
    from mlflow_perf.analysis.rightsize import right_size
    from mlflow_perf.model.document import NodeDocument, PerfDocument
    from mlflow_perf.tracking.perf_run import PerfRun

    folder = _folder()
    size = right_size([PerfRun.from_document("a", PerfDocument({0: NodeDocument()}))])

    def run(data: bytes) -> None:
        (folder / "machines.csv").write_bytes(data)
        json.dumps(choose_machine(size, read_machines(folder / "machines.csv")).as_dict())

    return _target(run, list(MACHINES), mutated_table)


def environments() -> Target:
    """A conda file and a list of requirements, of which nothing is installed."""
    from mlflow_perf.pipelines import environments as module
    from mlflow_perf.pipelines.graph import Graph, Step
    from mlflow_perf.pipelines.read_environment import read_environment
    from mlflow_perf.pipelines.sources import Sources

    folder = _folder()
    folder.joinpath("more.txt").write_text("numpy\n")
    # A foreign file is the subject here, and neither uv nor the registry that it asks.
    setattr(module, "_make", lambda *_: None)  # noqa: B010 - mypy refuses the plain form

    def run(data: bytes) -> None:
        for name in ("conda.yml", "requirements.txt"):
            if (name == "conda.yml") is not (b"dependencies" in data):
                continue
            (folder / name).write_bytes(data)
            sources = Sources({"asked": folder / name})
            spec = read_environment("asked", sources, folder, "Step 'a'")
            step = Step("a", "a", "true", None, wanted=spec)
            graph = Graph("g", "g", "g", {"a": step})
            said: list[str] = []
            cache = folder / "cache"
            module.choose_pythons(graph, {}, own=True, say=said.append, cache=cache)
            shutil.rmtree(cache, ignore_errors=True)

    return _target(run, [CONDA, b"numpy>=1.2\n-r more.txt\ngit+https://host/x\n"], _text_or_yaml)


def pipelines() -> Target:
    """A pipeline's YAML and its component's: planned, with each command filled in."""
    from mlflow_perf.errors import MlflowPerfError
    from mlflow_perf.pipelines.loading import load_job
    from mlflow_perf.pipelines.read_graph import read_graph
    from mlflow_perf.pipelines.sources import Sources
    from mlflow_perf.pipelines.values import fill_command

    folder = _folder()
    (folder / "data.csv").write_text("1\n")
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")

    def run(data: bytes) -> None:
        is_component = data.startswith(b"\x00") or b"commandComponent" in data
        (folder / "pipeline.yml").write_bytes(PIPELINE if is_component else data)
        (folder / "component.yml").write_bytes(data.lstrip(b"\x00") if is_component else COMPONENT)
        (folder / "conda.yml").write_bytes(CONDA)
        job, path = load_job(str(folder / "pipeline.yml"), {})
        graph = read_graph(job, source=path, sources=Sources(cache=folder / "cache"))
        for step in graph.steps.values():
            json.dumps([step.needs, step.ranks])
            inputs = dict.fromkeys(step.inputs, "x")
            with suppress(MlflowPerfError):
                fill_command(step.command, inputs=inputs, outputs=dict.fromkeys(step.outputs, "y"))

    return _target(run, [PIPELINE, COMPONENT], _text_or_yaml)


def tools() -> Target:
    """What an agent asks of the tools of `mlflow-perf mcp`."""
    import mlflow

    from mlflow_perf.cli._agent_tools import ANSWER_MAX, make_server

    folder = _folder()
    from tests.web.web_store import fill

    filled = fill(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts")
    mlflow.set_tracking_uri(filled.uri)
    server = make_server()
    ids = [filled.runs[name] for name in ("train", "training", "hostile")]

    async def ask(name: str, arguments: dict[str, Any]) -> str:
        found = await server.call_tool(name, arguments)
        return "".join(part.text for part in found.content)

    def run(data: bytes) -> None:
        from fastmcp.exceptions import FastMCPError, ToolError, ValidationError
        from pydantic import ValidationError as WrongArgument

        asked = _json(data)
        for name, arguments in asked.items() if isinstance(asked, dict) else ():
            try:
                text = asyncio.run(ask(str(name), arguments))
            except (ValidationError, WrongArgument, FastMCPError) as error:
                # The library's own refusal of arguments, unless a fault of ours is its cause.
                if type(error) is ToolError and error.__cause__ is not None:
                    raise error.__cause__ from error
                continue
            assert len(text) <= ANSWER_MAX + 100, len(text)
            assert str(folder) not in text, text

    seed = {
        "search_runs": {"component": "train", "filter": "params.rows = '9'", "limit": 3},
        "explain_run": {"run_id": ids[0]},
        "compare_runs": {"run_id": ids[0], "other_run_id": ids[1]},
        "history": {"component": "train", "metric": "duration_sec"},
        "advise": {"run_id": ids[2], "component": ""},
        "fleet": {"by": "experiment", "since": "30d"},
        "profile": {"run_id": ids[0], "other_run_id": ids[2]},
    }
    seeds = [json.dumps({name: arguments}).encode() for name, arguments in seed.items()]
    return _target(run, seeds, mutated_json)


def stacks() -> Target:
    """A profile in somebody else's document, and the output of py-spy."""
    from mlflow_perf.analysis.phases import describe_phase, read_phases
    from mlflow_perf.analysis.profile_changes import compare_profiles
    from mlflow_perf.core.json_io import to_json
    from mlflow_perf.model.document import PerfDocument
    from mlflow_perf.model.profile import list_functions
    from mlflow_perf.recorders.profile.py_spy import read_folded
    from mlflow_perf.reports.html import render
    from mlflow_perf.reports.speedscope import join_speedscope

    seed = _profiled()
    folded = b"process 7:python train.py --x 1;main (train.py:3);MainThread;load (a b.py:4) 12\n"

    def run(data: bytes) -> None:
        if not data.lstrip().startswith(b"{"):
            list(read_folded(data.decode("utf-8", "replace")))
            return
        document = PerfDocument.from_json(data)
        nodes = document.all_nodes()
        for node in nodes:
            list_functions(node)
            [describe_phase(phase) for phase in read_phases(node)]
        to_json(join_speedscope(nodes))
        whole = PerfDocument.from_json(seed).all_nodes()
        compare_profiles(nodes, whole)
        compare_profiles(whole, nodes)
        render(document)

    return _target(run, [seed, folded], _json_or_lines)


def _json_or_lines(data: bytes, random: Random) -> bytes:
    return (mutated_json if data.lstrip().startswith(b"{") else mutated_lines)(data, random)


def _profiled() -> bytes:
    """Return a document with a small profile, as a recording writes it."""
    from tests.model.test_profile import _job

    from mlflow_perf.core.json_io import to_json
    from mlflow_perf.model.document import NodeDocument, PerfDocument
    from mlflow_perf.model.profile_building import build_profile

    found = build_profile([_job()], started=100.0, duration_sec=10.0)
    extra = {"profile": found}
    node = NodeDocument(component="train", started=100.0, duration_sec=10.0, extra=extra)
    return to_json(PerfDocument({0: node}).as_dict()).encode()


def _json(data: bytes) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(data)
    return None


def _text_or_yaml(data: bytes, random: Random) -> bytes:
    return (mutated_yaml if random.random() < 0.7 else mutated_lines)(data, random)


def _target(run: Callable[[bytes], object], seeds: list[bytes], mutator: Any) -> Target:
    from tests.fuzz.targets import Target

    return Target(run, seeds, mutator)


def _folder() -> Path:
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))


def _check_finite(figures: dict[str, float]) -> None:
    odd = {key: value for key, value in figures.items() if not math.isfinite(value)}
    assert not odd, odd
