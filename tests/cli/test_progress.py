"""The progress line: on a terminal only, and only for what takes long."""

from __future__ import annotations

import io

from mlflow_perf.cli._progress import watched


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


def test_what_takes_long_is_shown_and_wiped() -> None:
    """After two seconds the line stands; at the end it is gone."""
    out = Terminal()
    assert list(watched(range(10), 10, out=out, clock=Clock(0.5))) == list(range(10))
    assert "] 4/10" in out.getvalue()
    assert "] 3/10" not in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")


def test_what_is_quick_or_unseen_is_silent() -> None:
    """Nothing is written within two seconds, nor where nobody watches."""
    quick, file = Terminal(), io.StringIO()
    assert list(watched(range(3), 3, out=quick, clock=Clock(0.1))) == [0, 1, 2]
    assert list(watched(range(3), 3, out=file, clock=Clock(9.0))) == [0, 1, 2]
    assert (quick.getvalue(), file.getvalue()) == ("", "")
