"""`mlflow-perf group`: make one workflow of all runs that a command starts."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlflow_perf.cli import _options
from mlflow_perf.cli._wrapped import ending_by_signal, find_signal, leave, prepare_command
from mlflow_perf.core.file_patience import find_patience
from mlflow_perf.core.format import format_count, join_some
from mlflow_perf.core.program_age import program_age_sec
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.settings import Settings
from mlflow_perf.core.starting import ENDING
from mlflow_perf.core.uris import first_line, reason_of
from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.model.document import BROKEN
from mlflow_perf.node.exit_cause import name_signal
from mlflow_perf.publish.group_journal import (
    NOTES,
    count_unsent_steps,
    find_step_journals,
    is_at_work,
)
from mlflow_perf.session.closing_line import write_note
from mlflow_perf.session.command import judge_end
from mlflow_perf.session.group_start import Group, open_group
from mlflow_perf.session.held_child import HeldChild
from mlflow_perf.session.outcome import Outcome
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.reporting_notes import (
    REPORTING_TAG,
    count_apart,
    gathering_notes,
    is_gathering,
    note_group,
    read_notes,
    tag_notes,
)
from mlflow_perf.tracking.run_handle import (
    PARENT_STORE_VARIABLE,
    PARENT_VARIABLE,
    STEP_VARIABLE,
    RunHandle,
)

if TYPE_CHECKING:
    from mlflow_perf.analysis.workflow import Workflow

__all__ = ["command"]

_log = get_logger("mlflow_perf.group")
# Docker kills a container 10 s after its SIGTERM, other supervisors later.
_AFTER_SIGNAL_SEC = 8.0
_SILENT_SEC = 1.0
_ADVICE = "start steps with `mlflow-perf run`, or use report() in them"
_LATER = "the end of each renews this workflow's report"


class _GroupCommand(click.Command):
    """Tells a name that was forgotten, as in `group -- snakemake`: click drops the `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            click.UsageError: When the command's place is that of the name.
        """
        if args[:1] == ["--"]:
            raise click.UsageError("A name is missing: mlflow-perf group NAME -- CMD …", ctx)
        return super().parse_args(ctx, args)


@click.command("group", cls=_GroupCommand, context_settings={"allow_interspersed_args": False})
@click.argument("name")
@click.argument("argv", metavar="-- CMD …", nargs=-1, required=True, type=click.UNPROCESSED)
def command(name: str, argv: tuple[str, ...]) -> None:
    """Run a command, and make one workflow of all runs that it reports.

    The command may be Make, Snakemake, Metaflow, a shell script or anything else that starts steps
    with `mlflow-perf run` or report(). Their runs become children of one run NAME, which gets the
    workflow's report: timeline, critical path, waiting times and unused resources. The
    command keeps its own output, input, signals and exit code; a signal that ends it ends this
    process too.
    """
    argv = argv[1:] if argv[0] == "--" else argv
    if not argv:
        raise click.UsageError("A command is missing: mlflow-perf group NAME -- CMD …")
    if not name.strip():
        raise click.BadParameter("must be a text that is not empty", param_hint="NAME")
    prepare_command(argv)
    with contextlib.ExitStack() as until_end:
        with ending_by_signal() as signals:
            settings = Settings.load()
            # Nobody has the journal until this returns.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
            group = open_group(name, settings)
            notes = group.journal.path.with_suffix(NOTES)
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                group.begin(settings)
                if group.delivery.run.run_id is not None:
                    _name_parent(group.delivery.run)
                    until_end.enter_context(gathering_notes(notes))
                child = HeldChild(argv)
            except KeyboardInterrupt as error:
                until_end.close()
                group.take_back(name_signal(find_signal(error)), signals)
                raise
        if group.delivery.run.run_id is None and not group.is_lost:
            group.let_recover_make_run()
        before_sec = program_age_sec()
        child.release()
        code, ended_by = child.wait(lambda: None)
        ended = time.monotonic()
        end = judge_end(code, ended_by=ended_by, received=child.received, oom_kills=0)
        with _keeping_exit_code():
            _await_steps(group, child, end, settings)
        child.reap()
        noted = find_patience(notes.parent).do(partial(read_notes, notes), "")
        group.delivery.tags |= tag_notes(noted)
        group.apart = count_apart(noted)
    with contextlib.suppress(KeyboardInterrupt), _keeping_exit_code():
        child.allow_interrupt()
        _finish(group, end, settings)
    note_group(noted, before_sec=before_sec, after_sec=time.monotonic() - ended)
    leave(-ended_by or code)


@contextlib.contextmanager
def _keeping_exit_code() -> Iterator[None]:
    """Let no fault of the block, as of the file system of the journals, end this process."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the command's own exit code is what counts
        _log.warning("The group's report could not be made: %s", first_line(error))


def _name_parent(run: RunHandle) -> None:
    """Name the parent run to all that the command starts."""
    assert run.run_id is not None
    # Not the experiment: MLflow refuses its id beside a name that a step chooses, or in its store.
    os.environ["MLFLOW_TRACKING_URI"] = os.environ[PARENT_STORE_VARIABLE] = run.tracking_uri
    os.environ[PARENT_VARIABLE] = run.run_id
    # A run that the command was to report to is not the run of each of its steps.
    os.environ.pop("MLFLOW_RUN_ID", None)
    os.environ.pop(STEP_VARIABLE, None)


def _await_steps(group: Group, child: HeldChild, end: Outcome, settings: Settings) -> None:
    """Wait for the reports of the steps that are still at work, in bounded time.

    What a command leaves running on purpose holds nobody up: without a signal, only steps that have
    ended and still send their reports are waited for.
    """
    if group.delivery.run.run_id is None:
        return
    group.note_end(end)  # a supervisor may kill this process meanwhile
    is_killed = end.status == "KILLED"
    most_sec = min(settings.exit_timeout, _AFTER_SIGNAL_SEC if is_killed else math.inf)
    began, is_said = time.monotonic(), settings.quiet
    folder = group.journal.path.parent
    find = partial(find_step_journals, group.delivery.run.run_id, folder)
    journals = find_patience(folder).do(find, dict[Path, str]())

    def list_busy() -> set[str]:
        return {
            step for path, step in journals.items() if is_at_work(path, only_sending=not is_killed)
        }

    def is_busy() -> bool:
        nonlocal is_said
        waited_sec = time.monotonic() - began
        busy = find_patience(folder).do(list_busy, set[str]())
        if busy and waited_sec >= _SILENT_SEC and not is_said:
            is_said = True
            of_what = "" if is_killed else "the report of "
            who = "a second signal" if is_killed else "a signal"
            count, most = format_count(len(busy), "step"), f"at most {most_sec:.0f} s"
            _say(f"waiting {most} for {of_what}{count} | {who} ends the wait")
        return bool(busy) and waited_sec < most_sec

    child.wait_while(is_busy)


def describe(workflow: Workflow) -> str:
    """Return a workflow's closing line: number of steps, failed steps, and critical path."""
    count = format_count(len(workflow.steps), "step")
    failed = [step.name for step in workflow.steps if step.status in BROKEN]
    parts = [f"{count} in {workflow.duration_sec:.1f} s"]
    if failed:
        parts.append(f"failed: {join_some(failed)}")
    elif workflow.status in BROKEN:
        parts.append("failed")
    if workflow.critical_path:  # none where a pipeline in it ran no step
        parts.append(f"longest way: {' → '.join(workflow.critical_path)}")
    return ", ".join(parts)


def _finish(group: Group, end: Outcome, settings: Settings) -> None:
    """End the parent run with the report of its workflow, in bounded time."""
    run_id, journal = group.delivery.run.run_id, group.journal
    folder = journal.path.parent
    if run_id is None:
        _leave_to_recover(group, end, settings)
        return
    own = {k: v for k, v in group.delivery.tags.items() if k.startswith(REPORTING_TAG)}
    tags = own | ({"mlflow_perf.cause": end.cause} if end.cause else {})
    ended = group.note_end(end)
    kept, at_work = _count_left(run_id, folder)

    def finish() -> str:
        # The command may have removed the environment that this program is in.
        from mlflow_perf.publish.killed_steps import recover_killed_steps
        from mlflow_perf.publish.workflow_renewal import renew_workflows
        from mlflow_perf.publish.workflow_report import log_workflow
        from mlflow_perf.publish.workflow_writer import Place, Tracking
        from mlflow_perf.tracking.search import name_all_steps_experiments

        tracking = Tracking(Place(group.delivery.run.tracking_uri))
        tracking.end(run_id, end.status, tags=tags, ended=ended)
        if kept:
            recover_killed_steps(run_id, folder, most_sec=settings.exit_timeout / 2)
        with contextlib.suppress(MlflowPerfError):
            name_all_steps_experiments(run_id, since_ms=int(1000 * group.began[0]))
        workflow, _ = log_workflow(run_id, tracking)
        if group.delivery.run.parent_id and not is_gathering():
            renew_workflows([(group.delivery.run.tracking_uri, run_id)])
        if workflow is not None:
            return describe(workflow)
        said = "no step reported"
        if not (kept or at_work or group.apart):
            # A step may have begun that had nothing to report yet.
            cut = f"{end.cause} ended the command" if end.status == "KILLED" else ""
            return f"{said}: {cut or _ADVICE}"
        return f"{said} yet" if at_work or kept else said

    try:
        _options.prepare()
        said = MlflowCall(finish, name="end-group").result(settings.exit_timeout)
    # The edge to MLflow, as above: the command's own exit code is what counts.
    except Exception as error:  # noqa: BLE001
        why = reason_of(error)
        is_kept = journal.keep(group.delivery, unsent=f"its report was not sent: {why}")
        then = f" It is kept; send it with: mlflow-perf recover {folder}" if is_kept else ""
        _log.warning("The group's report could not be made: %s.%s", why.rstrip("."), then)
        return
    journal.remove()
    kept, _ = _count_left(run_id, folder)  # what killed steps left is sent by now
    if not settings.quiet:
        if group.apart:
            _say(f"{format_count(group.apart, 'step')} reported to another store")
        if kept:
            count = format_count(kept, "step")
            _say(f"the report of {count} is kept | mlflow-perf recover {folder}")
        if at_work:
            count, verb = format_count(at_work, "step"), "is" if at_work == 1 else "are"
            _say(f"{count} {verb} still at work | {_LATER}")
        _say(f"{said} | mlflow-perf report {run_id}")


def _count_left(run_id: str, folder: Path) -> tuple[int, int]:
    """Count the steps that are not in MLflow yet; none where their journals cannot be read."""
    return find_patience(folder).do(partial(count_unsent_steps, run_id, folder), (0, 0))


def _leave_to_recover(group: Group, end: Outcome, settings: Settings) -> None:
    """Keep how a group ended that has no run: `recover` makes one, or ends one that was made late.

    A store whose address cannot be used takes none.
    """
    if group.is_lost:
        group.journal.remove()
        return
    group.note_end(end)
    is_kept = group.journal.keep(group.delivery, unsent=f"its run was not made: {group.unmade}")
    if is_kept and not settings.quiet:
        _say(f"the run of the group is kept | mlflow-perf recover {group.journal.path.parent}")


def _say(text: str) -> None:
    write_note(f"mlflow-perf: {text}")
