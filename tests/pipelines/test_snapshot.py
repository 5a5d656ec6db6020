"""The code a step runs with is what Azure ML would upload."""

from __future__ import annotations

import logging
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines import snapshot
from mlflow_perf.pipelines.graph import Step
from mlflow_perf.pipelines.snapshot import Snapshot, copy_code, list_files, take_snapshots

ROOT = Path(__file__).resolve().parents[2]


def _tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def _names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_steps_with_the_same_code_share_a_copy_of_it(tmp_path: Path) -> None:
    """That of a single step is its own; one that has none gets none, and a fault is its own."""
    code = _tree(tmp_path / "code", {"run.py": "1"})
    lib = _tree(tmp_path / "lib", {"a.py": "2"})
    steps = {
        "one": Step("one", "one", "do", code),
        "two": Step("two", "two", "do", code),
        "more": Step("more", "more", "do", code, includes=(lib,)),
        "again": Step("again", "again", "do", None, includes=(lib,)),
        "bare": Step("bare", "bare", "do", None),
        "bad": Step("bad", "bad", "do", tmp_path / "absent"),
    }
    taken = take_snapshots(steps, tmp_path / "to", repeated=["again"])
    assert taken["one"] is taken["two"]
    assert taken["more"].folder == tmp_path / "to" / "more" / "code"
    assert taken["again"].folder != tmp_path / "to" / "again" / "code"
    assert taken["bare"] == Snapshot()
    assert [_names(taken[n].folder or lib) for n in ("one", "more")] == [
        {"run.py"},
        {"run.py", "lib/a.py"},
    ]
    assert "absent cannot be copied" in taken["bad"].fault
    assert not any(taken[name].fault for name in ("one", "more", "bare"))


def test_nothing_stays_of_a_copy_that_fails(tmp_path: Path) -> None:
    """A full disk has room for the other steps then."""
    code = _tree(tmp_path / "code", {"a.py": "1", "b.py": "2"})
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    with pytest.raises(PipelineError, match="null is no file"):
        copy_code(code, (device,), tmp_path / "to")
    assert _names(tmp_path / "to") == set()


def test_a_copy_over_an_earlier_one_follows_no_link(tmp_path: Path) -> None:
    """A failed attempt may have put links to the user's own files in the place of its code's."""
    code = _tree(tmp_path / "code", {"run.py": "1", "lib/a.py": "2", "fixed.py": "3"})
    mine = _tree(tmp_path / "mine", {"run.py": "mine", "lib/a.py": "mine"})
    to = tmp_path / "to"
    copy_code(code, (), to)
    shutil.rmtree(to / "lib")
    (to / "run.py").unlink()
    (to / "lib").symlink_to(mine / "lib")
    (to / "run.py").symlink_to(mine / "run.py")
    (to / "fixed.py").chmod(0o444)
    (to / "more").touch()
    copy_code(code, (), to)
    assert [(to / n).read_text() for n in ("run.py", "lib/a.py", "fixed.py")] == ["1", "2", "3"]
    assert [(mine / n).read_text() for n in ("run.py", "lib/a.py")] == ["mine", "mine"]
    assert (to / "more").exists()


def test_ignored_files_stay_behind(tmp_path: Path) -> None:
    """`.amlignore` speaks gitignore's language, negation and anchors included."""
    code = _tree(
        tmp_path / "code",
        {
            ".amlignore": "*.log\n!keep.log\n/top\ndata/\n",
            ".gitignore": "run.py\n",
            "run.py": "", "a.log": "", "keep.log": "", "top": "", "sub/top": "", "data/x": "",
            "sub/__pycache__/x.pyc": "",
        },
    )  # fmt: skip
    copy_code(code, (), tmp_path / "to")
    assert _names(tmp_path / "to") == {"run.py", "keep.log", "sub/top"}


def test_includes_stand_at_the_root(tmp_path: Path) -> None:
    """A folder that is included keeps its name and its own ignore file; a file keeps its name."""
    code = _tree(tmp_path / "code", {"run.py": "1"})
    lib = _tree(
        tmp_path / "lib", {".amlignore": "notes\n", "a.py": "2", "b/c.py": "3", "notes": ""}
    )
    one = _tree(tmp_path / "x", {"one.txt": "4"}) / "one.txt"
    copy_code(code, (lib, one), tmp_path / "to")
    assert _names(tmp_path / "to") == {"run.py", "lib/a.py", "lib/b/c.py", "one.txt"}
    assert (tmp_path / "to" / "lib" / "b" / "c.py").read_text() == "3"


def test_two_files_of_one_name_are_an_error(tmp_path: Path) -> None:
    """Two files with the same name are refused."""
    code = _tree(tmp_path / "code", {"run.py": "1"})
    other = _tree(tmp_path / "other", {"run.py": "2"}) / "run.py"
    with pytest.raises(PipelineError, match=r"run\.py of the snapshot"):
        copy_code(code, (other,), tmp_path / "to")


def test_a_single_file_is_code_too(tmp_path: Path) -> None:
    """`code: ./run.py` brings that file alone."""
    code = _tree(tmp_path / "code", {"run.py": "1", "other.py": ""}) / "run.py"
    copy_code(code, (), tmp_path / "to")
    assert _names(tmp_path / "to") == {"run.py"}


@pytest.mark.parametrize(
    "name", sorted(p.parent.name for p in (ROOT / "components").glob("*/component.yaml"))
)
def test_the_snapshot_is_what_azure_would_upload(name: str) -> None:
    """azure-ai-ml's own collection of a component's files agrees with ours, file by file."""
    pytest.importorskip("azure.ai.ml")
    from azure.ai.ml import load_component
    from azure.ai.ml._utils._asset_utils import get_upload_files_from_folder

    component: Any = load_component(str(ROOT / "components" / name / "component.yaml"))
    base = Path(component.base_path)
    includes = tuple((base / i).resolve() for i in component.additional_includes)
    ours = {path for _, path in list_files(base, includes)}
    with component._build_code() as code:
        found: Any = get_upload_files_from_folder(code.path, ignore_file=code._ignore_file)
        top = Path(code.path).name + "/"
        theirs = {path.removeprefix(top) for _, path in found}
    assert ours == theirs
    assert "mlflow_perf/__init__.py" in ours


def test_folders_behind_links_are_copied_as_azure_would(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A link that leads back into itself, of which azure-ai-ml never finds an end, is left out."""
    code = _tree(tmp_path / "code", {"run.py": "", "lib/a.py": "", "lib/b/c.py": ""})
    _tree(tmp_path / "beside", {"data.csv": "1"})
    (code / "near").symlink_to("lib")
    (code / "far").symlink_to("../beside")
    (code / "lib" / "back").symlink_to("..")
    copy_code(code, (), tmp_path / "to")
    inside = {"a.py", "b/c.py"}
    assert _names(tmp_path / "to") == {
        "run.py", "far/data.csv", *(f"{top}/{name}" for top in ("lib", "near") for name in inside)
    }  # fmt: skip
    assert not any(path.is_symlink() for path in (tmp_path / "to").rglob("*"))
    assert caplog.text.count("leads back to a folder above it") == 2


def test_the_runners_own_folder_stays_behind(tmp_path: Path) -> None:
    """With `code: .` the copies are made below the code; a copy is never copied again."""
    code = _tree(tmp_path, {"run.py": "", "pipeline-runs/work/before/run.py": ""})
    copy_code(code, (), tmp_path / "pipeline-runs" / "work" / "now" / "code")
    copy_code(code, (), tmp_path / "elsewhere" / "code")
    assert _names(tmp_path / "pipeline-runs" / "work" / "now") == {"code/run.py"}
    assert _names(tmp_path / "elsewhere" / "code") == {"run.py"}


def test_a_device_is_not_copied(tmp_path: Path) -> None:
    """A link to a device in the code would fill the disk: it is refused by its name."""
    code = _tree(tmp_path / "code", {"run.py": ""})
    (code / "zero").symlink_to("/dev/zero")
    with pytest.raises(PipelineError, match="zero is no file"):
        copy_code(code, (), tmp_path / "to")


def test_sockets_and_pipes_are_left_out(tmp_path: Path) -> None:
    """Those of an editor or of git's monitor are no code, and opening a pipe would wait."""
    code = _tree(tmp_path / "code", {"run.py": ""})
    os.mkfifo(code / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(code / "editor.sock"))
        copy_code(code, (), tmp_path / "to")
    assert _names(tmp_path / "to") == {"run.py"}
    with pytest.raises(PipelineError, match="pipe is no file"):
        copy_code(code / "pipe", (), tmp_path / "other")


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_file_that_vanishes_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another program's journal may be listed and then removed; a named file must be there."""
    code = _tree(tmp_path / "code", {"run.py": "", "data.db-journal": "x"})
    copy = shutil.copy2

    def lose(source: Path, target: Path) -> None:
        (code / "data.db-journal").unlink(missing_ok=True)
        if moment == "after" and source.name != "run.py":
            target.write_text("x")
        copy(source, target)

    def list_then_lose(*given: Any) -> list[tuple[Path, str]]:
        found = list(list_files(*given))
        (code / "data.db-journal").unlink()
        return found

    if moment == "before":
        monkeypatch.setattr(snapshot, "list_files", list_then_lose)
    else:
        monkeypatch.setattr(shutil, "copy2", lose)
    copy_code(code, (), tmp_path / "to")
    assert _names(tmp_path / "to") == {"run.py"}
    monkeypatch.undo()
    with pytest.raises(PipelineError, match="cannot be copied"):
        copy_code(code, (tmp_path / "absent.py",), tmp_path / "other")


def test_a_link_to_nothing_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Emacs locks a file by such a link; a warning names it, because the program may need it."""
    code = _tree(tmp_path / "code", {"run.py": ""})
    (code / ".#run.py").symlink_to("me@here.1:2")
    with caplog.at_level(logging.WARNING):
        copy_code(code, (), tmp_path / "to")
    assert _names(tmp_path / "to") == {"run.py"}
    assert ".#run.py leads to no file" in caplog.text
