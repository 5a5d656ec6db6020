"""Python's own sampler as the engine. `test_py_spy.py` runs it for real where Python has one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlflow_perf.errors import SettingError
from mlflow_perf.recorders.collect import collect_stacks
from mlflow_perf.recorders.profile import python_sampler


def test_a_python_without_a_sampler_is_a_setting_that_cannot_be_used() -> None:
    """One line that names the version it takes, and what to use instead."""
    with pytest.raises(SettingError, match=r"from 3\.15 on; this is Python 3\.11"):
        python_sampler.check_version((3, 11))


def test_threads_and_children_are_read_and_ours_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread computes, a thread of ours waits; a child of another Python is left out."""
    job, child, foreign = os.getpid(), 10**7, 10**7 + 1
    ours = f"{python_sampler._PACKAGE}/sampling/sampler.py"

    def frame(name: str, file: str, line: int) -> SimpleNamespace:
        return SimpleNamespace(funcname=name, filename=file, location=(line, line, 0, 0))

    def thread(ident: int, status: int, *frames: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(thread_id=ident, status=status, frame_info=frames)

    stacks = {
        job: [
            thread(job, 2, frame("fit", "/x/job.py", 7), frame("<module>", "/x/job.py", 9)),
            thread(5, 0, frame("wait", "/x/threading.py", 3), frame("run", ours, 4)),
        ],
        child: [thread(child, 0, frame("fetch", "/x/job.py", 5))],
    }
    looks = [2]

    def open_process(pid: int, **_: object) -> SimpleNamespace:
        if pid == foreign:
            raise RuntimeError("it is another Python")

        def read() -> list[SimpleNamespace]:
            looks[0] -= pid == job
            if looks[0] < 0:
                raise KeyboardInterrupt
            return [SimpleNamespace(threads=stacks[pid])]

        return SimpleNamespace(get_stack_trace=read)

    remote = SimpleNamespace(
        RemoteUnwinder=open_process,
        THREAD_STATUS_ON_CPU=2,
        get_child_pids=lambda pid, recursive: [child, foreign],
        is_python_process=lambda pid: True,
    )
    monkeypatch.setattr(python_sampler, "_remote", remote)
    python_sampler.sample_beside(str(job), str(tmp_path), "100")
    raws = {raw.stacks[0][0]: raw for raw in collect_stacks(tmp_path)}
    assert raws.keys() == {"main thread", "child processes"}
    main = raws["main thread"]
    assert [one.name for one in main.functions] == ["<module>", "fit"]
    assert all(cell[3] == cell[4] > 0 for cell in main.cells)
    assert all(cell[3] > cell[4] == 0 for cell in raws["child processes"].cells)
