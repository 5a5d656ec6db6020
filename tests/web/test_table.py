"""Figures of many runs from the tables of MLflow's store."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.web_store import Filled

from mlflow_perf.web.access import Access
from mlflow_perf.web.listing import COLUMNS, Choice


@pytest.mark.parametrize(
    "sort", ["started", "-started", "name", "component", "-status", "-run_cpu_hours"]
)
@pytest.mark.parametrize("equal", [{}, {"component": "train"}, {"status": "FINISHED"}])
def test_the_tables_agree_with_mlflows_search(
    client: Any, store: Filled, sort: str, equal: dict[str, str]
) -> None:
    """The fast way finds the same runs with the same figures as MLflow's own search."""
    choice = Choice(sort=sort, equal=equal)
    # A condition that always holds makes `Access` take MLflow's search.
    general = Choice(sort=sort, equal=equal, query="attributes.run_id != 'x'")
    experiments = list(store.experiments.values())
    with client.application.test_request_context():
        fast = Access("").runs(experiments, choice).runs
        slow = Access("").runs(experiments, general).runs
    # A condition of MLflow's search cannot ask for the workflows of what it finds.
    assert {r.run_id for r in fast} - {r.run_id for r in slow} <= {store.runs["training"]}
    fast = [r for r in fast if r.component]
    keys = {key for column in COLUMNS for key in (column.key, column.instead)}
    assert {r.run_id for r in fast} == {r.run_id for r in slow}
    if sort in ("started", "-started"):
        assert [r.started for r in fast] == [r.started for r in slow]
    by_id = {run.run_id: run for run in slow}
    for run in fast:
        other = by_id[run.run_id]
        assert run.metrics == {k: v for k, v in other.metrics.items() if k in keys}
        assert (run.name, run.component, run.status) == (other.name, other.component, other.status)
