"""The table of faults in the docs is what the suite shows: no row without a test, and none less."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.harm.test_harm import ALL

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "never-lose-a-run.md"
OTHERS = (
    "tracking/test_mlflow_call.py", "session/test_run_finder.py", "core/test_uris.py",
    "publish/test_dispatch.py", "core/test_safe_log.py", "session/test_held_child.py",
    "session/test_recording.py", "publish/test_recovery_checks.py", "cli/test_group.py",
    "recorders/test_spool_folder.py", "session/test_run_sources.py",
    "tracking/test_client.py", "session/test_autolog.py", "core/test_originals.py",
    "session/test_command.py", "cli/test_run.py", "session/test_report.py",
    "session/test_outcome.py", "session/test_group_start.py", "cli/test_recover_workspaces.py",
    "publish/test_pipeline_journal.py", "pipelines/test_interrupts.py",
    "pipelines/test_step_guard.py", "recorders/profile/test_stack_spool.py",
)  # fmt: skip
"""Tests of the table that are not in this folder."""


def read_rows() -> list[list[str]]:
    """Return the cells of the table's rows."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def list_tests(path: Path, *, with_fault: bool = False) -> set[str]:
    """Return the names of a file's tests; perhaps only of those that note what a fault led to."""
    functions = re.findall(
        r"^def (test_\w+)\((.*?)\) -> None:", path.read_text("utf-8"), re.M | re.S
    )
    return {name for name, arguments in functions if not with_fault or "fault: Fault" in arguments}


def list_losses(path: Path) -> dict[str, set[str]]:
    """Return what each test of a file says was lost, where that is a plain text."""
    losses: dict[str, set[str]] = {}
    functions = ast.parse(path.read_text("utf-8")).body
    for function in [one for one in functions if isinstance(one, ast.FunctionDef)]:
        for call in [one for one in ast.walk(function) if isinstance(one, ast.Call)]:
            text = call.args[2] if ast.unparse(call.func) == "fault" else None
            if isinstance(text, ast.Constant):
                losses.setdefault(function.name, set()).add(str(text.value))
    return losses


def test_the_table_promises_no_less_loss_than_the_suite_sees() -> None:
    """What a row says is lost is what each of its tests says."""
    told = {test: row[3] for row in read_rows() for test in re.findall(r"`(test_\w+)`", row[4])}
    seen: dict[str, set[str]] = {}
    for file in Path(__file__).parent.glob("test_*.py"):
        seen |= list_losses(file)
    assert len(seen) > 30
    assert {test: {told[test]} for test in seen} == seen


def test_the_table_and_the_suite_agree() -> None:
    """Each row names tests or jobs that exist, and each test of a fault is in a row."""
    rows, folder = read_rows(), Path(__file__).parent
    assert len(rows) > 35
    assert {len(row) for row in rows} == {5}
    named = [re.findall(r"`([^`]+)`", row[4]) for row in rows]
    assert all(named)
    files = [*folder.glob("test_*.py"), *(ROOT / "tests" / name for name in OTHERS)]
    known = {test for file in files for test in list_tests(file)} | {job.name for job in ALL}
    assert {name for names in named for name in names} - known == set()
    faults = {test for file in files for test in list_tests(file, with_fault=True)}
    assert faults - {name for names in named for name in names} == set()
