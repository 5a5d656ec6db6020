"""A stack is named once, and again under another root or at another line."""

from __future__ import annotations

import pytest

from mlflow_perf.recorders.profile import stack_names
from mlflow_perf.recorders.profile.stack_names import StackNames
from mlflow_perf.recorders.profile.stacks import Place


def _work() -> int:
    one = 1
    return one + 1


def _stack(last: int = 0) -> list[Place]:
    return [(_work.__code__, last), (_stack.__code__, 0)]


def test_a_stack_is_known_by_its_functions_and_its_line() -> None:
    """Two places in one line are the same stack; two lines are two."""
    names = StackNames()
    offsets = {line: begin for begin, _, line in _work.__code__.co_lines() if line}
    found = {line: names.name(1, _stack(at), "main thread") for line, at in offsets.items()}
    assert len({key for key, _ in found.values()}) == len(offsets) >= 2
    for line, (key, [sample]) in found.items():
        assert (sample.line, sample.root) == (line, "main thread")
        assert [one.name for one in sample.path] == ["_stack", "_work"]
        assert names.name(1, _stack(offsets[line]), "main thread") == (key, (sample,))


def test_the_root_is_that_of_the_thread() -> None:
    """Two threads may be in the same functions."""
    names = StackNames()
    key, _ = names.name(1, _stack(), "main thread")
    again, [sample] = names.name(2, _stack(), "other threads")
    assert (again, sample.root) == (key, "other threads")


def test_a_job_that_makes_code_all_the_time_is_forgotten_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its stacks would take ever more memory."""
    monkeypatch.setattr(stack_names, "_MOST_KEYS", 10)
    names = StackNames()
    for i in range(50):
        code = compile("", f"<made {i}>", "exec")
        _, [sample] = names.name(1, [(code, 0)], "main thread")
        assert sample.path[0].file == f"<made {i}>"
        assert len(names._known) <= 10
