"""The progress bar: on a terminal only, and only for what takes long."""

from __future__ import annotations

import io

import pytest
from click import unstyle

from mlflow_perf.cli._progress import ProgressBar, watched


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that moves by a step each time that it is asked."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def _open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make the standard error a terminal; pytest would replace one from a fixture."""
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    return out


def test_a_long_activity_is_shown_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two seconds the bar appears; at the end its line is erased."""
    terminal = _open_terminal(monkeypatch)
    assert list(watched(range(10), 10, clock=Clock(0.5))) == list(range(10))
    text = unstyle(terminal.getvalue())
    assert "40% 4/10" in text
    assert "3/10" not in text
    assert terminal.getvalue().endswith("\x1b[2K")


def test_a_quick_activity_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written within two seconds."""
    terminal = _open_terminal(monkeypatch)
    assert list(watched(range(3), 3, clock=Clock(0.1))) == [0, 1, 2]
    assert terminal.getvalue() == ""


def test_nothing_is_drawn_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a pipe gets no bar, whatever the time."""
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    assert list(watched(range(3), 3, clock=Clock(9.0))) == [0, 1, 2]
    assert file.getvalue() == ""
    monkeypatch.setattr("sys.stderr", None)  # closed before the start
    assert list(watched(range(3), 3, clock=Clock(9.0))) == [0, 1, 2]


def test_an_activity_without_a_count_shows_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share above one is a full bar, and a name in brackets is text."""
    terminal = _open_terminal(monkeypatch)
    bar = ProgressBar(Clock(3.0))
    bar("[red]importing[/red]", 7.0)
    bar.close()
    assert "100% [red]importing[/red]" in unstyle(terminal.getvalue())
