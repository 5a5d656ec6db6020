"""`mlflow-perf advise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result

Call = Callable[..., Result]


def test_the_json_is_the_contract(log_run: Callable[..., str], cli_json: Any) -> None:
    """Cores, memory, nodes, GPUs and evidence; never below the peak of 1,537 MB."""
    data = cli_json("advise", log_run({}))
    keys = {"cpus", "memory_mb", "nodes", "gpus", "evidence", "p_fit", "runs", "method"}
    assert set(data) == keys
    assert (data["cpus"], data["memory_mb"], data["nodes"], data["gpus"]) == (3, 2240, 1, 0)
    assert (data["p_fit"], data["runs"]) == (0.9625, 1)
    assert "little evidence" in data["method"]
    assert any("1,537" in sentence for sentence in data["evidence"])


def test_lines_can_be_pasted(write_document: Any, cli: Call) -> None:
    """Slurm, Kubernetes and Azure ML lines stand in the output; one alone where it is asked for."""
    path = write_document({})
    output = cli("advise", path).output
    for line in ("#SBATCH --mem=2240M", "memory: 2240Mi", "instance_type: Standard_F4s_v2"):
        assert line in output
    alone = cli("advise", path, "--for", "slurm").output
    assert all(line.startswith("#SBATCH --") for line in alone.splitlines())


def test_a_component_is_advised_on_from_its_history(
    log_run: Callable[..., str], cli_json: Any, cli: Call
) -> None:
    """The worst of a component's runs counts."""
    for memory in (1000.0, 9000.0, 2000.0):
        log_run({"job_max_mem_mb": memory}, component="grower")
    assert cli_json("advise", "--component", "grower")["memory_mb"] >= 9000
    assert cli_json("advise", "--component", "grower", "--last", "1")["memory_mb"] == 2944
    assert cli_json("advise", "--component", "grower", "--headroom", "0")["memory_mb"] == 9024
    result = cli("advise", "--component", "nobody")
    assert result.exit_code == 2
    assert "No run of the component 'nobody'" in result.stderr


def test_a_workflow_is_advised_on_step_by_step(
    log_run: Callable[..., str], cli_json: Any, cli: Call
) -> None:
    """Each step gets its own size."""
    parent = log_run(component="flow")
    for step in ("prepare", "fit"):
        log_run({}, component=step, tags={"mlflow.parentRunId": parent})
    assert set(cli_json("advise", parent)["steps"]) == {"prepare", "fit"}
    output = cli("advise", parent).output
    assert output.index("prepare") < output.index("fit")
    assert "16 → 3" in output
    assert max(map(len, output.splitlines())) <= 80
    lines = cli("advise", parent, "--for", "kubernetes").output
    assert lines.startswith("# prepare\nresources:")
    assert "# fit\nresources:" in lines


def test_one_of_run_and_component_is_needed(cli: Call) -> None:
    """Neither and both are bad usage."""
    assert cli("advise").exit_code == 2
    assert cli("advise", "x", "--component", "y").exit_code == 2
