"""The first finding of real jobs: recorded ones always, the jobs themselves when asked for.

`python -m tests.analysis.situations.record` records them anew. The whole table of real jobs runs by
hand: `make test ARGS="tests/analysis/test_situations.py -m load -n 0"`.
"""

from __future__ import annotations

import pytest
from tests.analysis.situations.jobs import SITUATIONS, Situation
from tests.analysis.situations.record import CannotBeMadeError, measure, read_recorded

from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PerfRun

RECORDED = read_recorded()
CASES = [
    pytest.param(situation, beside, id=f"{situation.name}{'-beside-' * bool(beside)}{beside}")
    for situation in SITUATIONS
    for beside in ("", "half")
    if (situation.name, beside) in RECORDED
]
SHORTEST = ("serial_burner", "sleeper", "prints", "gil_threads")
"""Real jobs of the ordinary suite; what they need is no more than a machine."""


def _check(document: NodeDocument, situation: Situation, beside: str) -> None:
    found = findings_of(document)
    expected = (situation.beside if beside else ()) or (situation.expected,)
    assert found[0].kind in expected, [(f.kind, f.share, f.evidence) for f in found]
    if found[0].kind == situation.expected:
        assert situation.says in found[0].sentence


@pytest.mark.parametrize(("situation", "beside"), CASES)
def test_a_recorded_job_has_its_finding(situation: Situation, beside: str) -> None:
    """The first finding is what the job was made for, alone and beside a neighbour."""
    _check(RECORDED[situation.name, beside], situation, beside)


@pytest.mark.parametrize(("situation", "beside"), CASES)
def test_a_finding_that_names_a_number_of_cpus_agrees_with_the_advice(
    situation: Situation, beside: str
) -> None:
    """`ask for one CPU` is said where one is advised, and no other number than that advised."""
    document = RECORDED[situation.name, beside]
    first = findings_of(document)[0]
    advised = right_size([PerfRun("job", document=PerfDocument({0: document}))]).cpus
    if first.kind == "serial":
        assert ("or ask for one CPU" in first.do) == (advised == 1)
        assert advised == 1 or f"{advised} CPUs" in first.do
    if first.kind in ("oversubscribed", "saturated"):
        assert advised is not None
        assert advised >= min(2, document.summary["cpu_limit_cores"])


def test_there_are_at_least_forty_situations() -> None:
    """The table is large, and each of its rows was recorded."""
    assert len(SITUATIONS) >= 40
    assert {name for name, _ in RECORDED} == {situation.name for situation in SITUATIONS}


def _run(situation: Situation, beside: str = "") -> None:
    try:
        document = measure(situation, beside=beside)
    except CannotBeMadeError as error:
        pytest.skip(f"this machine does not let us make it: {error}")
    if "job_cpu_avg_cores" not in document.summary:
        pytest.skip("this machine does not tell the job's own figures")
    _check(document, situation, beside)


@pytest.mark.e2e
@pytest.mark.parametrize("name", SHORTEST)
def test_a_real_job_has_its_finding(name: str) -> None:
    """A few of the jobs are made for real in the ordinary suite."""
    _run(next(situation for situation in SITUATIONS if situation.name == name))


@pytest.mark.e2e
def test_the_right_size_of_a_real_job_whose_need_is_known() -> None:
    """Of a job that holds 600 MB and computes on one CPU, neither less nor twice it is advised."""
    situation = next(s for s in SITUATIONS if s.name == "loads_then_computes")
    document = measure(situation, first=False)
    size = right_size([PerfRun("job", document=PerfDocument({0: document}))])
    assert size.memory_mb is not None
    assert 600 * 1.2 <= size.memory_mb < 1200
    assert size.cpus is not None
    assert size.cpus <= 2


@pytest.mark.load
@pytest.mark.parametrize("beside", ["", "half"])
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_every_real_job_has_its_finding(situation: Situation, beside: str) -> None:
    """The whole table, for real."""
    _run(situation, beside)
