"""What runs teach about the memory of the next one."""

from __future__ import annotations

from mlflow_perf.analysis.learned_memory import SeenRun, learn_memory


def _runs(*peaks: float) -> list[SeenRun]:
    return [SeenRun(f"run {i}", peak, 60.0) for i, peak in enumerate(peaks)]


def test_the_largest_peak_is_never_undercut_without_a_reason() -> None:
    """One run of many needed far more: no quantile hides it."""
    learned = learn_memory(_runs(*[1000.0] * 150, 5000.0, *[1000.0] * 50))
    assert learned is not None
    assert learned.wanted_mb >= 5000.0


def test_a_component_that_changed_forgets_its_past() -> None:
    """After eight runs that use a tenth, the old peak and the old kill do not count."""
    old = [*_runs(*[9000.0] * 20), SeenRun("killed", 0.0, 5.0, failed_mb=8000.0, ended_well=False)]
    learned = learn_memory([*old, *_runs(*[900.0] * 8)])
    assert learned is not None
    assert learned.suggestion.after_change
    assert learned.failed_mb == 0.0
    assert 900.0 < learned.wanted_mb < 2000.0


def test_an_input_that_predicts_less_may_undercut_the_largest_peak() -> None:
    """Peaks that grow with the rows: a small run asks for little, and names the predictor."""
    rows = [1000.0 * (7 * i % 41) for i in range(1, 41)]
    seen = [SeenRun(f"{r:g} rows", 100.0 + r / 10, 60.0, {"rows": r}) for r in rows]
    learned = learn_memory(seen, inputs={"rows": 2000.0})
    assert learned is not None
    assert learned.suggestion.predictor == "rows"
    assert 300.0 <= learned.wanted_mb < 1000.0


def test_after_a_kill_more_is_asked_for_than_was_had() -> None:
    """What a killed run was seen to use is a lower bound, no peak."""
    killed = SeenRun("killed", 3900.0, 5.0, failed_mb=4000.0, ended_well=False)
    alone = learn_memory([killed])
    assert alone is not None
    assert alone.wanted_mb > 4000.0
    learned = learn_memory([*_runs(2000.0, 2100.0), killed])
    assert learned is not None
    assert learned.wanted_mb > 4000.0


def test_a_run_that_failed_otherwise_teaches_nothing() -> None:
    """It may have ended before it needed much; it counts where no other run had as much."""
    failed = SeenRun("failed", 10.0, 1.0, ended_well=False)
    learned = learn_memory([*_runs(*[1000.0] * 3), *[failed] * 30])
    assert learned is not None
    assert learned.suggestion.runs == 3
    assert learn_memory([failed]) is not None
    larger = SeenRun("larger", 4000.0, 1.0, ended_well=False)
    of_larger = learn_memory([*_runs(*[1000.0] * 3), larger])
    assert of_larger is not None
    assert larger in of_larger.teachers
    assert of_larger.wanted_mb > 4000.0
    assert learn_memory([]) is None
