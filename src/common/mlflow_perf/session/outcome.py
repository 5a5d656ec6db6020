"""How a block or a command ended, as the status and the cause of its report."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType

from mlflow_perf.model.document import worst_status
from mlflow_perf.node.exit_cause import name_signal
from mlflow_perf.node.slurm_job import explain_sigterm
from mlflow_perf.node.step_notes import read_stop_note
from mlflow_perf.recorders.rank_commands import RankCommand

CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP"}
"""Signals that a program's own fault raises; all others come from outside."""


@dataclass(frozen=True)
class Outcome:
    """How a block or a command ended.

    Attributes:
        status: Status for a run of its own: `FINISHED`, `FAILED` or `KILLED`.
        cause: Why it ended early, in a few words; None where it ended by itself.
        elsewhere: The program that had its work started where it is not measured.
    """

    status: str = "FINISHED"
    cause: str | None = None
    elsewhere: str | None = None

    @classmethod
    def from_error(cls, error: BaseException | None) -> Outcome:
        """Return the outcome of a block that ended with an exception, or with none."""
        if error is None or issubclass(type(error), GeneratorExit):
            return cls()
        # The name, not the message, which may contain anything. Neither attributes of the class nor
        # a comparison of the code may raise here, in place of the job's exception.
        kind = type(error)
        cause = type.__getattribute__(kind, "__name__")
        if issubclass(kind, SystemExit):
            code = vars(SystemExit)["code"].__get__(error)
            is_done = code is None or (issubclass(type(code), int) and int.__eq__(code, 0))
            return cls() if is_done else cls("FAILED", cause)
        # The command lines of Click and Typer end with this exception where all is well, too.
        module = type.__getattribute__(kind, "__module__")
        if cause == "Exit" and module in ("click.exceptions", "typer.exceptions"):
            return cls() if getattr(error, "exit_code", 1) == 0 else cls("FAILED", cause)
        if cause == "CancelledError" and _has_asyncio_interrupted():
            cause, kind = "KeyboardInterrupt", KeyboardInterrupt
        return cls("KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED", cause)

    def after(self, signals: Iterable[int], *, is_usual: bool) -> Outcome:
        """Return it, or that of the first signal that ended the job although it has a handler.

        Args:
            signals: The numbers of those that came.
            is_usual: Whether the job's code reached its end. After SIGHUP, by which a daemon reads
                its settings again, it has gone on then.
        """
        ending = {"SIGTERM"} if is_usual else {"SIGTERM", "SIGHUP"}
        ended_by = next((name for name in map(name_signal, signals) if name in ending), None)
        return self if ended_by is None else Outcome("KILLED", ended_by)

    def explain(self, node: Mapping[str, object]) -> Outcome:
        """Return it with the reason of whoever sent SIGTERM: a pipeline's runner, or Slurm.

        Args:
            node: The facts of this node.
        """
        if (self.cause or "").endswith("SIGTERM") and (note := read_stop_note()):
            status, why = note
            return replace(self, status=status, cause=why)  # as the runner has it
        return replace(self, cause=explain_sigterm(self.cause, node))

    @property
    def is_failure(self) -> bool:
        """Whether the job's own fault ended it: the launcher waits for that to end other ranks."""
        return self.status == "FAILED" or _is_crash(self.cause)

    def worst_with(self, others: Iterable[RankCommand]) -> Outcome:
        """Return the outcome of a job: this one, or the worse one of another rank."""
        worst = self
        for other in others:
            is_worse = worst_status([worst.status, other.status]) != worst.status
            # Once a rank has crashed, the launcher ends the others.
            is_origin = worst.status == "KILLED" and _is_crash(other.cause) > _is_crash(worst.cause)
            if is_worse or (is_origin and other.status == worst.status):
                worst = replace(self, status=other.status, cause=other.cause)
        return worst


def _has_asyncio_interrupted() -> bool:
    """Return whether `asyncio.run` has cancelled its task because of a Ctrl-C.

    From Python 3.11 on it does so in its handler, counts that, and raises `KeyboardInterrupt` only
    behind the task.
    """
    handler = signal.getsignal(signal.SIGINT)
    # Types first: attributes of a handler of the job's may run code of the job.
    method = handler.func if type(handler) is partial else None
    runner = method.__self__ if type(method) is MethodType else None
    is_asyncios = type.__getattribute__(type(runner), "__module__") == "asyncio.runners"
    return is_asyncios and bool(getattr(runner, "_interrupt_count", 0))


def _is_crash(cause: str | None) -> bool:
    return (cause or "").removeprefix("signal ") in CRASHES
