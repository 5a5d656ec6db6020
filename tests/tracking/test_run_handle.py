"""The handle of a run: it takes one run, from whoever still has the permission to create it."""

from __future__ import annotations

from mlflow_perf.tracking.run_handle import RunHandle


def test_the_first_run_is_the_run() -> None:
    """A second run, created meanwhile by another thread, is refused."""
    run = RunHandle("sqlite:///x.db", experiment_name="wanted")
    slow, fast = run.claim(), run.claim()
    assert fast.adopt("r1", own=True, experiment_id="7")
    assert not slow.adopt("r2", own=True, experiment_id="7")
    assert (run.run_id, run.own_run, run.experiment_id) == ("r1", True, "7")
    assert run.experiment_name is None, "the id says it all"


def test_a_run_that_comes_after_its_claim_was_withdrawn_is_refused() -> None:
    """Nobody waits for it any more: the report goes elsewhere."""
    run = RunHandle()
    claim = run.claim()
    claim.withdraw()
    assert not claim.adopt("late", own=True, experiment_id=None)
    assert run.run_id is None
    assert run.claim().adopt("r1", own=False, experiment_id=None), "other claims still hold"


def test_a_given_run_stays() -> None:
    """A handle that has a run from its beginning takes no other."""
    run = RunHandle(run_id="given")
    assert not run.claim().adopt("other", own=True, experiment_id=None)
    assert (run.run_id, run.own_run) == ("given", False)
