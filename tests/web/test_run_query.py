"""Statements that find the runs of the page in the store's tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mlflow import MlflowClient
from tests.web.web_store import NOW_MS, Filled

from mlflow_perf.web import run_query
from mlflow_perf.web.access import Access
from mlflow_perf.web.choice import Choice

_TEXTS = ("1e-3", ".5", "+1.5", "9", "10", "1e2e3", "abc")


@pytest.fixture(scope="module")
def mixed(client: Any, store: Filled) -> Iterator[str]:
    """An experiment of runs with a parameter of many kinds, each after one without our data."""
    mlflow = MlflowClient(store.uri)
    experiment = mlflow.create_experiment("mixed")
    for i, text in enumerate(reversed((*_TEXTS, ""))):
        tags = {"mlflow_perf.component": "mixed"}
        mlflow.create_run(experiment, NOW_MS + 10 * i + 1, run_name="foreign")
        run_id = mlflow.create_run(experiment, NOW_MS + 10 * i, tags, text).info.run_id
        if text:
            mlflow.log_param(run_id, "kind", text)
    yield experiment
    for run in mlflow.search_runs([experiment]):
        mlflow.delete_run(run.info.run_id)


def _list_names(client: Any, experiment: str, **choice: Any) -> list[str | None]:
    with client.application.test_request_context():
        return [run.name for run in Access("").runs([experiment], Choice(**choice)).runs]


def test_parameters_sort_as_numbers_then_as_texts(client: Any, mixed: str) -> None:
    """SQLite's comparison takes the same texts for numbers as `read_number`; missing ones last."""
    shown = _list_names(client, mixed, sort="params.kind")
    assert shown[:-1] == [*_TEXTS]
    down = _list_names(client, mixed, sort="-params.kind")
    assert down[:-1] == [*_TEXTS[4::-1], *_TEXTS[:4:-1]]


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_runs_without_our_data_do_not_shorten_a_page(
    client: Any, mixed: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first runs in the order are not ours, all are looked at: no page is too short."""
    whole = _list_names(client, mixed)
    monkeypatch.setattr(run_query, "_SCANNED", 1)
    pages = [_list_names(client, mixed, limit=limit, page=str(at)) for at in range(0, 8, limit)]
    assert len(whole) == 8
    assert [name for page in pages for name in page] == whole


def test_a_condition_is_part_of_the_statement(client: Any, mixed: str) -> None:
    """Conditions on parameters and attributes find what MLflow's search finds."""
    assert _list_names(client, mixed, query="params.kind = 'abc'") == ["abc"]
    found = _list_names(client, mixed, query="params.kind LIKE '1%' AND run_name != '10'")
    assert sorted(map(str, found)) == ["1e-3", "1e2e3"]
