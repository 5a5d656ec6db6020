"""The workbench: own columns, groups, plots and trends of runs of one component."""

from __future__ import annotations

import csv
import html
import io
import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from tests.web.web_store import Filled, list_shown

from mlflow_perf.web.access import Access


@pytest.fixture(scope="module")
def trained(client: Any, store: Filled) -> Iterator[list[str]]:
    """Twelve runs of one component with parameters and an accuracy; the last six take longer."""
    mlflow, made = MlflowClient(store.uri), []
    now = int(time.time() * 1000)
    for i in range(12):
        start = now - (20 - i) * 3_600_000
        tags = {"mlflow_perf.component": "fit", "mlflow_perf.bottleneck": "cpu",
                "mlflow.user": "ana"}  # fmt: skip
        run_id = mlflow.create_run(
            store.experiments["forecast"], start, tags=tags, run_name=f"fit {i}"
        ).info.run_id
        seconds = 100.0 + i % 3 + (100.0 if i >= 6 else 0.0)
        figures = {"duration_sec": seconds, "run_duration_sec": seconds, "auc": 0.5 + i / 100,
                   "run_cpu_hours": 2.0, "run_unused_cpu_hours": 1.5}  # fmt: skip
        params = {"leaves": str((i * 7) % 12), "booster": "=cmd()", "fixed": "1"}
        mlflow.log_batch(
            run_id,
            [Metric(k, v, start, 0) for k, v in figures.items()],
            [Param(k, v) for k, v in params.items()],
        )
        mlflow.set_terminated(run_id, "FINISHED", start + int(1000 * seconds))
        made.append(run_id)
    mlflow.set_tag(made[2], "mlflow_perf.baseline", "true")
    yield made
    for run_id in made:
        mlflow.delete_run(run_id)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("-metrics.auc", range(11, -1, -1)),
        ("auc", range(12)),
        ("params.leaves", sorted(range(12), key=lambda i: (i * 7) % 12)),
    ],
)
def test_the_list_sorts_by_the_users_own_fields(
    client: Any, trained: list[str], sort: str, order: Sequence[int]
) -> None:
    """Metrics and parameters of the user's are columns and sort the list; numbers as numbers."""
    text = client.get(f"/perf?component=fit&sort={sort}").text
    assert list_shown(text) == [trained[i] for i in order]
    heads = re.findall(r"<thead>.*</thead>", text)[0]
    assert "auc" in heads
    assert "leaves" in heads
    assert "fixed" not in heads  # the same in all runs
    assert "baseline" in text


def test_columns_are_chosen_in_the_address(client: Any, trained: list[str]) -> None:
    """With `col` the list shows these columns and no others, and every link keeps them."""
    text = client.get("/perf?component=fit&col=params.fixed&col=metrics.auc&group=user").text
    heads = re.findall(r'href="/perf\?([^"]*)"><bdi>([^<]*)', text)
    assert [label for _, label in heads[5:]] == ["fixed", "auc"]
    assert all("col=params.fixed" in address for address, _ in heads)
    assert "12 runs" in text
    assert "ana" in text


def test_the_list_is_csv_too(client: Any, trained: list[str]) -> None:
    """The CSV has a row for each run, over all pages, and no cell that a spreadsheet runs."""
    answer = client.get("/perf/runs.csv?component=fit&limit=5&col=metrics.auc&col=params.booster")
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert rows[0][-2:] == ["metrics.auc", "params.booster"]
    assert [row[0] for row in rows[1:]] == trained[::-1]
    assert [row[-2] for row in rows[1:]] == [str((50 + i) / 100) for i in range(11, -1, -1)]
    assert {row[-1] for row in rows[1:]} == {"'=cmd()"}


def test_two_fields_are_plotted(client: Any, trained: list[str]) -> None:
    """Each run is a dot that leads to it; a sentence says whether one field follows the other."""
    text = client.get("/perf/scatter?component=fit&x=metrics.auc&y=run_duration_sec").text
    assert text.count('<a tabindex="-1"') == 12
    assert "Duration rises as auc rises" in text
    assert "col=metrics.auc&amp;col=run_duration_sec" in text


def test_a_trend_names_the_run_where_the_level_changed(client: Any, trained: list[str]) -> None:
    """The trend has the change with both runs, the median since, and the pinned baseline."""
    text = html.unescape(client.get("/perf/trend?component=fit").text)
    assert f"/perf/compare?run={trained[5]}&run={trained[6]}" in text
    assert "101 → 201 s (+99.0%)" in text
    assert "Baseline 1 min 42 s: +97.1% now." in text
    assert '<span class="tag worse">worse' in text
    same = client.get("/perf/trend?component=fit&param=leaves").text
    assert "11 runs left out" in same
    assert "fit" in client.get("/perf/trend").text


def test_the_overview_sums_what_the_user_may_read(
    client: Any, trained: list[str], monkeypatch: pytest.MonkeyPatch, store: Filled
) -> None:
    """Totals, groups, what got worse and what would help are of the readable experiments only."""
    text = html.unescape(client.get("/perf/fleet?by=component&since=7d").text)
    assert "24 CPU h" in text
    assert "fit held 18 CPU h that nobody used" in text
    assert "takes longer since" in text
    assert client.get("/perf/fleet?by=experiment").text.count("forecast") >= 2
    secret = {store.experiments["secret"]: "secret"}
    monkeypatch.setattr(Access, "experiments", lambda _: secret)
    hidden = client.get("/perf/fleet?by=component&since=7d").text
    assert "fit" not in re.sub("<style>.*</style>", "", hidden, flags=re.DOTALL).replace(
        "benefit", ""
    )
    assert "24 CPU h" not in hidden


@pytest.mark.parametrize("is_newest", [True, False])
def test_numbers_that_are_none_break_no_page(
    client: Any, store: Filled, *, is_newest: bool
) -> None:
    """A loss that diverged, and figures of ours that somebody overwrote, are absent from plots."""
    mlflow, made = MlflowClient(store.uri), []
    start = int(time.time() * 1000) - 60_000
    good, bad = (2.0, 3.0, 5.0), (math.inf, -math.inf, math.nan, 1.7e308)
    keys = ("duration_sec", "run_duration_sec", "run_cpu_hours", "node_cpu_hours", "loss",
            "run_unused_cpu_hours", "run_job_max_mem_mb")  # fmt: skip
    for i, value in enumerate((*good, *bad) if is_newest else (*bad, *good)):
        tags = {"mlflow_perf.component": "odd"}
        run = mlflow.create_run(store.experiments["forecast"], start + i, tags=tags)
        mlflow.log_batch(
            run.info.run_id, [Metric(k, value, start, 0) for k in keys], [Param("lr", str(value))]
        )
        mlflow.set_terminated(run.info.run_id, "FINISHED", start + 9)
        made.append(run.info.run_id)
    try:
        for address in (
            "?component=odd", "?col=metrics.loss&sort=-metrics.loss", "?group=component",
            "/fleet?by=component", "/fleet?by=week", "/trend?component=odd&metric=loss",
            "/trend?component=odd&metric=duration_sec", "/runs.csv?component=odd",
            "/scatter?component=odd&x=params.lr&y=metrics.loss",
            "/scatter?component=odd&x=metrics.loss&y=run_cpu_hours&logx=1&logy=1",
            f"/run?id={made[0]}", f"/run?id={made[-1]}",
        ):  # fmt: skip
            assert client.get(f"/perf{address}").status_code == 200, address
        compared = client.get(f"/perf/compare?run={made[0]}&run={made[-1]}")
        assert compared.status_code == 400, "one of them has no figures"
        shown = html.unescape(client.get("/perf/scatter?x=metrics.loss&y=metrics.loss").text)
        assert "3 of " in shown
        said = client.get("/perf/trend?component=odd&metric=loss&param=lr")
        assert said.status_code == (400 if is_newest else 200)
        found = html.unescape(client.get("/perf?component=odd&sort=-metrics.loss&col=loss").text)
        order = [made.index(run_id) for run_id in re.findall(r"run\?id=(\w{32})", found)]
        values = [((*good, *bad) if is_newest else (*bad, *good))[i] for i in order]
        assert list(dict.fromkeys(values))[:3] == [5.0, 3.0, 2.0], "runs without a value are last"
    finally:
        for run_id in made:
            mlflow.delete_run(run_id)
