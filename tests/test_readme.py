"""README is true: its tables come from the code, its examples run, its commands exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tools.write_docs import PAGES, with_tables

from mlflow_perf.cli import main
from mlflow_perf.core.settings import SETTINGS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def examples() -> dict[str, str]:
    """Return README's marked Python examples by name, in order."""
    found = re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", README, re.DOTALL)
    return dict(found)


def test_the_tables_are_those_of_the_code() -> None:
    """README prints the tables of metrics and settings that the code defines."""
    assert with_tables(README) == README, "run: python tools/write_docs.py"


def test_the_docs_pages_are_those_of_the_code(tmp_path: Path) -> None:
    """The pages of metrics and commands are generated too."""
    # In a process of its own: a command that another test invoked by itself has kept its options.
    pages = [Path(name) for name in (*PAGES, "docs/commands.md")]
    for page in pages:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    subprocess.run([sys.executable, "tools/write_docs.py", str(tmp_path)], check=True)
    for page in pages:
        assert (tmp_path / page).read_text() == (ROOT / page).read_text(), (
            "run: python tools/write_docs.py"
        )


def test_the_examples_run(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The examples run one after the other, as a reader would paste them."""
    namespace: dict[str, Any] = {}
    for code in examples().values():
        exec(compile(code, "README.md", "exec"), namespace)
    assert set(examples()) == {"wrap", "analyse"}
    assert namespace["perf"].summary["ops/compute/count"] == 1.0
    assert "timestamp" in capsys.readouterr().out


def test_each_command_stands_in_readme_and_has_help() -> None:
    """No command is hidden from README, and each explains itself."""
    listed = set(re.findall(r"^\$ mlflow-perf (\w+)", README, re.MULTILINE))
    commands = main.list_commands(click.Context(main))
    assert listed <= set(commands), "README names a command that does not exist"
    assert set(commands) <= listed, "a command is missing in README"
    for name in commands:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0
        assert len(result.output.splitlines()) > 3


def test_the_makefile_has_every_target_of_readme() -> None:
    """What README says to make can be made."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\$ make ([a-z]+)", README)) <= targets


def test_pictures_and_links_exist() -> None:
    """Each relative link and picture in README leads to a file."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_says_what_it_means(name: str) -> None:
    """Each row of the settings' table is a sentence."""
    assert SETTINGS[name].meaning.endswith(".")
