"""How a job can end, for real: what MLflow holds then, and how the process ended."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.conftest import wait_until

from mlflow_perf.tracking.load import load

if TYPE_CHECKING:
    from tests.faults.conftest import Fault, Faults

pytestmark = pytest.mark.e2e


def test_a_job_that_fails(faults: Faults, fault: Fault) -> None:
    """The exception and its exit code are the job's own; the run is FAILED, with its figures."""
    raised, left = faults.start("raising"), faults.start("busy", 0.1)
    exiting, done = faults.start("leaving", "3"), faults.start("leaving", "0")
    assert [job.wait() for job in (raised, left, exiting, done)] == [1, 0, 3, 0]
    assert "the job's own" in raised.output
    ends = ((raised, "FAILED"), (left, "FINISHED"), (exiting, "FAILED"), (done, "FINISHED"))
    for job, status in ends:
        run_id = job.run_id
        assert faults.run(run_id).info.status == status
        assert faults.has_all(run_id)
    fault("exception", "own run FAILED, passed through", "none")
    fault("sys.exit", "own run FAILED or FINISHED, exit code passed through", "none")


@pytest.mark.parametrize("how", ["", "native", "native after a handler", "threads", "nested"])
def test_sigterm(faults: Faults, fault: Fault, how: str) -> None:
    """The report is logged, the run KILLED, and the process ends of the signal as without us."""
    job, run_id = faults.started("nested") if how == "nested" else faults.started("sleeping", how)
    job.kill(signal.SIGTERM)
    assert job.wait() == -signal.SIGTERM, job.output
    run = faults.run(run_id)
    assert run.info.status == "KILLED"
    assert run.data.tags["mlflow_perf.status"] == "KILLED"
    assert run.data.tags["mlflow_perf.cause"] == "SIGTERM"
    assert faults.has_all(run_id)
    assert not [name for name in faults.journals if name.endswith(".journal")]
    fault(f"SIGTERM, {how or 'main thread asleep'}", "logged, own run KILLED, exit -15", "none")


def test_sighup(faults: Faults, fault: Fault) -> None:
    """A terminal that goes away ends the job as without us, and the report is logged."""
    job, run_id = faults.started("sleeping")
    job.kill(signal.SIGHUP)
    assert job.wait() == -signal.SIGHUP, job.output
    assert faults.run(run_id).data.tags["mlflow_perf.cause"] == "SIGHUP"
    assert faults.has_all(run_id)
    fault("SIGHUP", "logged, own run KILLED, exit -1", "none")


@pytest.mark.parametrize(("end", "status"), [("usual", "FINISHED"), ("error", "KILLED")])
def test_a_daemon_that_reads_its_settings_again_is_not_killed(
    faults: Faults, fault: Fault, end: str, status: str
) -> None:
    """SIGHUP asks for it; where an error ends the block all the same, its terminal has gone."""
    job, run_id = faults.started("reads_its_settings_again", end)
    job.kill(signal.SIGHUP)
    assert job.wait() == (7 if end == "error" else 0), job.output
    run = faults.run(run_id)
    assert run.info.status == run.data.tags["mlflow_perf.status"] == status
    assert run.data.tags.get("mlflow_perf.cause") == (None if end == "usual" else "SIGHUP")
    assert faults.has_all(run_id)
    fault(f"SIGHUP, handled, {end} end", f"logged, own run {status}", "none")


@pytest.mark.parametrize("how", ["ends", "goes on", "is over"])
def test_sigterm_beside_an_event_loop(faults: Faults, fault: Fault, how: str) -> None:
    """A handler of asyncio's runs, and the report is logged though it hides the signal from us."""
    job, run_id = faults.started("in_a_loop", how)
    job.kill(signal.SIGTERM)
    if how == "goes on":
        wait_until(lambda: faults.run(run_id).info.status == "KILLED", job, seconds=30)
        job.kill(signal.SIGKILL)
    expected = {"ends": 6, "goes on": -signal.SIGKILL, "is over": -signal.SIGTERM}
    assert job.wait() == expected[how], job.output
    assert ("handler ran" in job.output) == (how != "is over")
    run = faults.run(run_id)
    assert (run.info.status, run.data.tags["mlflow_perf.cause"]) == ("KILLED", "SIGTERM")
    assert faults.has_all(run_id)
    lost = "what came after it" if how == "goes on" else "none"
    fault(f"SIGTERM, event loop's handler {how}", "logged, own run KILLED", lost)


def test_sigterm_that_a_server_sends_itself_again(faults: Faults, fault: Fault) -> None:
    """Uvicorn stops gracefully, and then ends of the signal as without us; the report is logged."""
    job, run_id = faults.started("serving")
    job.kill(signal.SIGTERM)
    assert job.wait() == -signal.SIGTERM, job.output
    assert "never" not in job.output
    run = faults.run(run_id)
    assert (run.info.status, run.data.tags["mlflow_perf.cause"]) == ("KILLED", "SIGTERM")
    assert faults.has_all(run_id)
    fault("SIGTERM, handled and sent again", "logged, own run KILLED, exit -15", "none")


def test_sigint(faults: Faults, fault: Fault) -> None:
    """A KeyboardInterrupt passes through, and the report is logged."""
    job, run_id = faults.started("sleeping")
    job.kill(signal.SIGINT)
    assert job.wait() == -signal.SIGINT
    assert "KeyboardInterrupt" in job.output
    assert faults.run(run_id).info.status == "KILLED"
    assert faults.has_all(run_id)
    fault("SIGINT", "logged, own run KILLED, KeyboardInterrupt", "none")


def test_sigterm_with_a_handler_of_the_jobs(faults: Faults, fault: Fault) -> None:
    """The job's handler runs and decides the exit code; the run is KILLED."""
    job, run_id = faults.started("sleeping", "own handler")
    job.kill(signal.SIGTERM)
    assert job.wait() == 5
    assert "handler ran" in job.output
    assert faults.run(run_id).info.status == "KILLED"
    assert faults.has_all(run_id)
    fault("SIGTERM, handler of the job's", "logged, own run KILLED, handler's exit code", "none")


def test_sigterm_then_sigkill_before_the_job_was_done(faults: Faults, fault: Fault) -> None:
    """A job that takes too long over its own handler has been reported by then."""
    job, run_id = faults.started("slow_handler")
    job.kill(signal.SIGTERM)
    wait_until(lambda: faults.run(run_id).info.status == "KILLED", job, seconds=30)
    job.kill(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert "handler ran" in job.output
    assert faults.has_all(run_id)
    fault("SIGTERM, then SIGKILL", "logged before the kill, own run KILLED", "what came after it")


def test_sigterm_that_the_job_ignores(faults: Faults, fault: Fault) -> None:
    """What a job ignores it still ignores."""
    job, run_id = faults.started("sleeping", "ignored")
    job.kill(signal.SIGTERM)
    assert job.wait() == 0
    assert faults.run(run_id).info.status == "FINISHED"
    fault("SIGTERM, ignored by the job", "nothing changes", "none")


@pytest.mark.parametrize("how", ["SIGKILL", "os._exit"])
def test_no_word_at_all(faults: Faults, fault: Fault, how: str, tmp_path: Path) -> None:
    """The journal holds the figures; recover sends them, once, though two run at the same time."""
    if how == "SIGKILL":
        job, run_id = faults.started("sleeping", MLFLOW_PERF_PROFILE="100")
        assert faults.recover().output.strip() == "[]", "a live job is left alone"
        job.kill(signal.SIGKILL)
        assert job.wait() == -signal.SIGKILL
    else:
        job, run_id = faults.started("leaving", "os._exit")
        assert job.wait() == 3
    both = [faults.start("command", "recover", "--json") for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    sent = [row for one in both for row in json.loads(one.output)]
    assert [row["run_id"] for row in sent] == [run_id]
    run = faults.run(run_id)
    assert run.info.status == "KILLED"
    assert "killed" in run.data.tags["mlflow_perf.cause"]
    assert faults.has_all(run_id)
    assert faults.journals == []
    if how == "SIGKILL":
        node = faults.client.download_artifacts(run_id, "perf/node-0.json", str(tmp_path))
        (document,) = load(node).all_nodes()
        functions = {row["function"] for row in document.extra["profile"]["functions"]}
        assert "sleeping" in functions, "the profile survives"
    fault(how, "recover logs it, own run KILLED", "at most the last 4 s")


POINTS = [
    ("mlflow_perf.session.run_finder:RunFinder.find", ""),
    ("mlflow_perf.session.run_finder:create_run", ""),
    ("mlflow_perf.session.run_finder:create_run", "after"),
    ("mlflow_perf.tracking.run_handle:Claim.adopt", "after"),
    ("mlflow_perf.publish.journal:Journal.note_run", "after"),
    ("mlflow_perf.publish.journal:Journal.start", "after"),
    ("mlflow_perf.session.recording:PerformanceMetricsCollector.start", "after"),
]


def test_killed_while_it_starts(faults: Faults, fault: Fault) -> None:
    """Wherever a kill strikes a job that starts, `recover` leaves no run RUNNING."""
    jobs = [faults.start("killed_at", *point) for point in POINTS]
    assert {job.wait() for job in jobs} == {-signal.SIGKILL}, [job.output for job in jobs]
    assert not any("begun" in job.output for job in jobs[:-1])
    running = faults.client.search_runs(
        ["0"], "attributes.run_name LIKE 'killed at%' and attributes.status = 'RUNNING'"
    )
    assert len(running) == 5, "all but the first two have a run"
    done = json.loads(faults.recover().output)
    assert sorted(one["outcome"] for one in done) == ["not begun"] * 5 + ["sent"] * 2
    ended = [faults.run(run.info.run_id) for run in running]
    assert {run.info.status for run in ended} == {"KILLED"}
    assert all("killed" in run.data.tags["mlflow_perf.cause"] for run in ended)
    assert len(faults.client.search_runs(["0"], "attributes.run_name LIKE 'killed at%'")) == 5
    assert faults.journals == []
    fault("SIGKILL while report() starts", "recover ends the run as KILLED", "none")


def test_a_killed_first_attempt_never_replaces_a_finished_second(
    faults: Faults, fault: Fault
) -> None:
    """Recover keeps what the second attempt reported, and puts the first one's report beside it."""
    run_id = faults.client.create_run("0").info.run_id
    first, _ = faults.started("sleeping", MLFLOW_RUN_ID=run_id)
    first.kill(signal.SIGKILL)
    first.wait()
    assert faults.start("busy", 0.3, MLFLOW_RUN_ID=run_id).wait() == 0
    before = faults.run(run_id)
    warning, answer = faults.recover().output.strip().splitlines()
    assert "has a later report of 'job' on node 0, which stays" in warning
    assert json.loads(answer)[0]["run_id"] == run_id
    after = faults.run(run_id)
    assert after.data.metrics == before.data.metrics
    assert after.data.tags == before.data.tags
    assert after.info.status == before.info.status == "RUNNING", "it is not ours to end"
    names = [file.path for file in faults.client.list_artifacts(run_id, "perf")]
    assert len([name for name in names if name.startswith("perf/replaced-node-0-")]) == 1
    fault(
        "SIGKILL, then a second attempt in the same run",
        "the second one's figures stay",
        "at most the last 4 s",
    )


def test_a_killed_command_under_run(faults: Faults, fault: Fault) -> None:
    """`mlflow-perf run` notices at once that its command was killed, and says by what."""
    script = "echo pid $$; exec sleep 60"
    job = faults.start("command", "run", "--name", "victim", "--", "sh", "-c", script)
    wait_until(lambda: "pid " in job.output, job)
    os.kill(int(job.output.split()[1]), signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL, job.output
    (run,) = faults.named("victim")
    assert run.info.status == "KILLED"
    assert run.data.tags["mlflow_perf.cause"] == "signal SIGKILL"
    assert faults.has_all(run.info.run_id)
    assert faults.journals == []
    fault("SIGKILL under mlflow-perf run", "logged at once with the cause, exit -9", "none")


def test_clock_processes_and_threads_that_come_and_go(faults: Faults, fault: Fault) -> None:
    """A clock that is set back, and processes and threads that come and go, spoil no figure."""
    job = faults.start("restless")
    assert job.wait() == 0, job.output
    took = float(job.output.split("took ")[1].split()[0])
    whole = float(job.output.split("whole ")[1].split()[0])
    run_id = job.run_id
    metrics = faults.run(run_id).data.metrics
    assert [key for key, value in metrics.items() if not 0 <= value < 1e9] == []
    assert took <= metrics["duration_sec"] <= whole
    # 4 processes of 0.15 s each, which were born and are gone: counted, and once.
    assert 0.6 <= 3600 * metrics["job_cpu_hours"] < 0.6 + whole
    assert len(faults.client.get_metric_history(run_id, "duration_sec")) == 1
    fault("clock set back, processes and threads go", "no negative, doubled or odd figure", "none")


def test_a_command_with_a_closed_standard_output(faults: Faults) -> None:
    """Its exit code passes through, though our own standard output is closed too."""
    job = faults.start(
        "command_without_stdout", "run", "--name", "shut", "--", "sh", "-c", "exit 5"
    )
    assert job.wait() == 5, job.output
    (run,) = faults.named("shut")
    assert run.info.status == "FAILED"


def test_out_of_memory(faults: Faults, fault: Fault, memory_cgroup: Path) -> None:
    """The report of a job that the OOM killer ended is recovered, with its cause."""
    job = faults.start("join_cgroup", str(memory_cgroup), "sleeping", "outgrow")
    assert job.wait() == -signal.SIGKILL, job.output
    run_id = job.run_id
    (sent,) = json.loads(faults.recover().output)
    assert sent["run_id"] == run_id
    assert "OOM" in faults.run(run_id).data.tags["mlflow_perf.cause"]
    assert faults.has_all(run_id)
    fault("OOM kill of report()", "recover logs it with the cause", "at most the last 4 s")


def test_out_of_memory_under_run(faults: Faults, fault: Fault, memory_cgroup: Path) -> None:
    """`mlflow-perf run` outlives its command and logs the OOM kill at once."""
    hog = f"echo $$ > {memory_cgroup}/cgroup.procs; sleep 1.2; exec tail /dev/zero"
    job = faults.start("command", "run", "--name", "hog", "--", "sh", "-c", hog)
    assert job.wait() == -signal.SIGKILL, job.output
    (run,) = faults.named("hog")
    assert run.info.status == "KILLED"
    assert "OOM killer" in run.data.tags["mlflow_perf.cause"]
    assert faults.has_all(run.info.run_id)
    fault("OOM kill under mlflow-perf run", "logged at once with the cause, exit -9", "none")


def test_ranks_without_a_job_id(faults: Faults, fault: Fault) -> None:
    """Ranks of one node have one run, which holds the operations of all; none is left RUNNING.

    Where the first rank does not report, the others say so, and make no run that nobody ends.
    """
    with_size = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    ranks = [{**with_size, "PMI_RANK": n, "MPI_LOCALRANKID": n} for n in ("1", "0")]
    second, first = (faults.start("rank", 1.0, **environ) for environ in ranks)
    assert [first.wait(), second.wait()] == [0, 0], first.output + second.output
    (run,) = faults.named("ranks")
    assert run.info.status == "FINISHED"
    assert run.info.run_id == first.run_id
    assert run.data.metrics["ops/rows/count"] == 14
    assert "Nothing is reported" not in second.output
    alone = faults.start("rank", 0.1, **ranks[0])
    assert alone.wait() == 0
    assert alone.output.count("Nothing is reported of rank 1: the first rank on this node") == 1
    assert len(faults.named("ranks")) == 1
    fault("ranks of one node, no job's id", "one run with all operations", "none")


def test_the_interpreter_ends_inside_a_block(faults: Faults, fault: Fault) -> None:
    """A daemon thread's block is reported when the interpreter ends."""
    job = faults.start("in_a_daemon_thread")
    assert job.wait() == 0, job.output
    run_id = job.run_id
    run = faults.run(run_id)
    assert run.info.status == "KILLED"
    assert "interpreter" in run.data.tags["mlflow_perf.cause"]
    assert faults.has_all(run_id)
    fault("interpreter ends inside a block", "logged, own run KILLED", "none")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children(faults: Faults, fault: Fault, method: str) -> None:
    """Children neither sample nor log nor take signals for their parent; their operations count."""
    job = faults.start("with_children", method)
    assert job.wait() == 0, job.output
    run_id = job.run_id
    run = faults.run(run_id)
    assert run.info.status == "FINISHED", job.output
    assert run.data.metrics["ops/in the child/count"] == 8
    assert "Traceback" not in job.output
    assert len(faults.client.get_metric_history(run_id, "duration_sec")) == 1
    assert faults.journals == []
    fault(f"children by {method}, ended by SIGTERM", "one report, the parent's", "none")
