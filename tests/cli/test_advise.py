"""`mlflow-perf advise`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

Call = Callable[..., Result]


def test_the_json_is_the_contract(log_run: Callable[..., str], cli_json: Any) -> None:
    """Cores, memory, nodes, GPUs and evidence; never below the peak of 1,537 MB."""
    data = cli_json("advise", log_run({}))
    keys = {"cpus", "memory_mb", "nodes", "gpus", "gpu_memory_mb"}
    keys |= {"evidence", "p_fit", "runs", "method"}
    assert set(data) == keys
    assert (data["cpus"], data["memory_mb"], data["nodes"], data["gpus"]) == (3, 2240, 1, 0)
    assert data["gpu_memory_mb"] is None
    assert (data["p_fit"], data["runs"]) == (0.9625, 1)
    assert "little evidence" in data["method"]
    assert any("1,537" in sentence for sentence in data["evidence"])


def test_lines_can_be_pasted(write_document: Any, cli: Call) -> None:
    """The output has lines for Slurm, Kubernetes and Azure ML; `--for` prints one alone."""
    path = write_document({})
    output = cli("advise", path).output
    for line in ("#SBATCH --mem=2240M", "memory: 2240Mi", "instance_type: Standard_F4s_v2"):
        assert line in output
    alone = cli("advise", path, "--for", "slurm").output
    assert all(line.startswith("#SBATCH --") for line in alone.splitlines())


def test_the_memory_of_each_gpu_is_a_row_of_its_own(write_document: Any, cli: Call) -> None:
    """What the job held at most, and what to ask for; without a GPU there is no such row."""
    assert "GPU memory" not in cli("advise", write_document({})).output
    gpu = {"gpu0_avg_utilization_pct": 35.5, "max_t_gpu_mem_mb": 20700.0}
    row = next(
        line for line in cli("advise", write_document(gpu)).output.splitlines()
        if line.startswith("GPU memory")
    )  # fmt: skip
    assert row.split()[3:] == ["–", "20,700", "22,770"]


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
    assert "did you mean 'grower'?" in cli("advise", "--component", "growr").stderr


def test_a_run_that_was_killed_before_it_had_figures_is_mentioned(
    log_run: Callable[..., str], cli_json: Any, cli: Call
) -> None:
    """It may have been the one that needed most; a failed run says itself what it lacked."""
    log_run({}, component="X")
    dead = {"mlflow_perf.component": "X", "mlflow_perf.status": "KILLED"}
    said = "1 run of X was left out: it was killed before it had figures."
    assert said not in cli_json("advise", "--component", "X")["evidence"]
    log_run(component="X", status="KILLED", tags=dead)
    log_run(component="X", status="FAILED", tags={"mlflow_perf.component": "X"})
    assert cli_json("advise", "--component", "X", "--last", "1")["evidence"][-1] == said
    log_run(component="X", status="KILLED", tags=dead)
    shown = " ".join(cli("advise", "--component", "X").output.split())
    both = "2 runs of X were left out: they were killed before they had figures."
    assert both in shown
    log_run({}, component="Y")
    found = cli_json("advise", "--all")["components"]
    assert found["X"]["evidence"][-1] == both
    assert not any("left out" in said for said in found["Y"]["evidence"])


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


def test_an_input_predicts_the_memory(
    log_run: Callable[..., str], cli_json: Any, cli: Call, client: Any
) -> None:
    """The predictor is named, the risk is a setting, and a name that no run has is refused."""
    for rows in range(1, 13):
        run_id = log_run({"job_max_mem_mb": 200.0 + 100.0 * rows}, component="by_rows")
        client.log_param(run_id, "rows", rows * 1000)
    advise = ("advise", "--component", "by_rows")
    small = cli_json(*advise, "--input", "rows=2e3")
    assert small["predictor"] == "rows"
    assert 400 <= small["memory_mb"] < 1000 < cli_json(*advise)["memory_mb"]
    assert cli_json(*advise, "--risk", "30%")["p_fit"] <= cli_json(*advise)["p_fit"]
    result = cli(*advise, "--input", "rowz=1")
    assert result.exit_code == 2
    assert "No run has the input 'rowz'" in result.stderr
    assert cli(*advise, "--risk", "200%").exit_code == 2


def test_a_table_of_machines_gives_the_cheapest(
    write_document: Any, cli: Call, cli_json: Any
) -> None:
    """The machine is in the text, in the JSON and on the page; no run needs another store."""
    path = write_document({})
    Path("m.csv").write_text("name,cpus,memory_gb,price\nbig,8,64,0.8\nok,4,8,0.2\nlow,2,1,0.1\n")
    assert cli_json("advise", path, "--machines", "m.csv")["machine"] == "ok"
    assert "ok: the cheapest of 2" in cli("advise", path, "--machines", "m.csv").output
    assert cli("advise", path, "--machines", "m.csv", "--html", "page.html").exit_code == 0
    page = Path("page.html").read_text()
    assert "ok: the cheapest" in page
    assert "<svg" in page
    Path("m.csv").write_text("name,cpus,price\nbig,8,0.8\n")
    result = cli("advise", path, "--machines", "m.csv")
    assert result.exit_code == 2
    assert "no column with the memory" in result.stderr


def test_every_component_is_advised_on(
    log_run: Callable[..., str], cli_json: Any, cli: Call
) -> None:
    """Each component has an entry, from its own newest runs."""
    log_run({"job_max_mem_mb": 3000.0}, component="all_a")
    log_run({"job_max_mem_mb": 5000.0}, component="all_b")
    found = cli_json("advise", "--all")["components"]
    assert found["all_a"]["memory_mb"] < 5000 <= found["all_b"]["memory_mb"]
    assert "all_b" in cli("advise", "--all").output


def test_tasks_of_one_step_are_learned_from_together(
    log_run: Callable[..., str], cli_json: Any
) -> None:
    """A workflow with many tasks of a component has one advice for them."""
    parent = log_run(component="flow")
    for memory in (1000.0, 1100.0, 1050.0):
        tags = {"mlflow.parentRunId": parent}
        log_run({"job_max_mem_mb": memory}, component="align", tags=tags)
    assert cli_json("advise", parent)["runs"] == 3
