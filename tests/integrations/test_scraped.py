"""Rules of the growth of an endpoint's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.integrations._scraped import Growth, Histogram, Scraped

parser = pytest.importorskip("prometheus_client.parser")


def _families(text: str) -> list[Any]:
    return list(parser.text_string_to_metric_families(text))


def _scraped(answers: Sequence[str], **options: Any) -> Scraped:
    scraped = Scraped(**options)
    for number, answer in enumerate(answers):
        scraped.update(_families(answer), first=number == 0)
    return scraped


@given(st.lists(st.integers(min_value=0, max_value=100), min_size=1, max_size=20))
def test_growth_is_never_negative(values: list[int]) -> None:
    """However a counter jumps, its growth only grows, and never by more than its value."""
    growth, before = Growth(), 0.0
    for value in values:
        growth.update(value)
        assert before <= growth.total <= before + value
        before = growth.total


def test_counter_counts_from_the_start_through_a_reset() -> None:
    """A counter's total is its growth since the first answer; after a fall it grows from zero."""
    answers = [f"# TYPE c_total counter\nc_total {value}\n" for value in (100, 104, 3, 5)]
    assert _scraped(answers).summary_metrics() == {"scrape/c/total": 9}


def test_gauge_has_extremes_and_mean() -> None:
    """A gauge gives min, mean and max of the answers; a metric without a type is a gauge."""
    answers = [f"# TYPE g gauge\ng {value}\nu {value}\n" for value in (4, 1, 7)]
    assert _scraped(answers).summary_metrics() == {
        "scrape/g/min": 1, "scrape/g/mean": 4, "scrape/g/max": 7,
        "scrape/u/min": 1, "scrape/u/mean": 4, "scrape/u/max": 7,
    }  # fmt: skip


def test_series_that_comes_later_counts_from_zero() -> None:
    """A label that first shows during the job counts in full; one from before as it grows."""
    first = '# TYPE r_total counter\nr_total{code="200"} 50\nr_total{code="404"} 2\n'
    second = first.replace("50", "51") + 'r_total{code="500"} 7\n'
    assert _scraped([first, second]).summary_metrics() == {
        "scrape/r.code_200/total": 1, "scrape/r.code_404/total": 0, "scrape/r.code_500/total": 7,
    }  # fmt: skip


def test_labels_that_tell_nothing_apart_are_left_out_of_the_key() -> None:
    """A label that is the same in all series of a metric is not part of its key."""
    text = '# TYPE g gauge\ng{engine="0",model="m/x"} 1\n'
    assert "scrape/g/mean" in _scraped([text]).summary_metrics()


HISTOGRAM = """# TYPE h histogram
h_bucket{{le="1"}} {0}
h_bucket{{le="2"}} {1}
h_bucket{{le="4"}} {2}
h_bucket{{le="+Inf"}} {2}
h_sum {3}
h_count {2}
"""


def test_histogram_counts_from_the_start() -> None:
    """Count, sum and buckets of a histogram are those of the job alone."""
    answers = [HISTOGRAM.format(50, 60, 70, 99.0), HISTOGRAM.format(50, 160, 170, 259.0)]
    metrics = _scraped(answers).summary_metrics()
    assert (metrics["scrape/h/count"], metrics["scrape/h/sum"]) == (100, 160)
    assert metrics["scrape/h/avg"] == 1.6
    assert metrics["scrape/h/p50"] == pytest.approx(1.5, rel=0.03)


def test_histogram_that_was_reset_counts_all_its_parts_from_zero() -> None:
    """When the count falls, a bucket that has grown past its old value counts from zero too."""
    answers = [HISTOGRAM.format(0, 1, 10, 20.0), HISTOGRAM.format(5, 5, 5, 2.5)]
    metrics = _scraped(answers).summary_metrics()
    assert metrics["scrape/h/count"] == 5
    assert metrics["scrape/h/p99"] <= 1.02


def test_summary_without_buckets_has_no_percentiles() -> None:
    """A Prometheus summary gives count, sum and mean; its quantiles are not of the job."""
    text = '# TYPE s summary\ns{{quantile="0.5"}} 3\ns_sum {0}\ns_count {1}\n'
    answers = [text.format(10, 5), text.format(40, 15)]
    assert _scraped(answers).summary_metrics() == {
        "scrape/s/count": 10, "scrape/s/sum": 30, "scrape/s/avg": 3,
    }  # fmt: skip


@given(st.lists(st.floats(min_value=0.01, max_value=9.9), min_size=20, max_size=300))
def test_percentiles_lie_in_the_bucket_of_the_true_ones(values: list[float]) -> None:
    """A percentile from buckets is never further off than its bucket is wide."""
    bounds = np.array([0.5, 1.0, 2.5, 5.0, 10.0])
    histogram = Histogram()
    zeros: dict[float | str, float] = {float(bound): 0.0 for bound in bounds}
    histogram.update({"sum": 0.0, "count": 0.0, **zeros}, first=True)
    counts: dict[float | str, float] = {
        float(bound): float(np.sum(np.array(values) <= bound)) for bound in bounds
    }
    histogram.update({**counts, "sum": sum(values), "count": float(len(values))}, first=False)
    figures = histogram.figures()
    true = float(np.percentile(values, 50, method="lower"))
    place = int(np.searchsorted(bounds, true))
    lower = 0.0 if place == 0 else bounds[place - 1]
    upper = bounds[int(np.searchsorted(bounds, np.percentile(values, 50, method="higher")))]
    assert lower * 0.98 <= figures["p50"] <= upper * 1.02
    assert figures["sum"] == pytest.approx(sum(values))


def test_series_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Beyond max_series no series is kept, one warning says so, and those kept go on."""
    text = "# TYPE g gauge\n" + "".join(f'g{{n="{n}"}} 1\n' for n in range(1000))
    scraped = _scraped([text, text], max_series=10)
    assert len(scraped.summary_metrics()) == 30
    assert len(caplog.records) == 1
    assert "patterns" in caplog.text


def test_patterns_choose() -> None:
    """Only metrics whose names match a pattern are kept."""
    text = "# TYPE a gauge\na 1\n# TYPE ab gauge\nab 1\n# TYPE b gauge\nb 1\n"
    assert set(_scraped([text], match=["a*", "c"]).summary_metrics()) == {
        f"scrape/{name}/{figure}" for name in ("a", "ab") for figure in ("min", "mean", "max")
    }


def test_values_that_are_not_finite_are_left_out() -> None:
    """NaN and infinity never reach a figure."""
    answers = ["# TYPE g gauge\ng NaN\n", "# TYPE g gauge\ng +Inf\n", "# TYPE g gauge\ng 3\n"]
    assert _scraped(answers).summary_metrics()["scrape/g/mean"] == 3


@given(st.text(max_size=400))
def test_any_label_gives_a_short_key(value: str) -> None:
    """With any text in a label, the key is short and MLflow allows it."""
    scraped = Scraped()
    escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    text = f'# TYPE g gauge\ng{{l="{escaped}"}} 1\ng{{l="other"}} 2\n'
    for key in scraped.update(_families(text), first=True):
        name = key.removeprefix("scrape/")
        assert len(name) <= 150
        assert name.isascii()
        assert "/" not in name


def _engines(*figures: int | None) -> str:
    """Return vLLM's metrics of engines with these numbers of transfers of 1 MiB and failures."""
    size, failed = "vllm:nixl_bytes_transferred", "vllm:nixl_num_failed_transfers"
    lines = [f"# TYPE {size} histogram"]
    for engine, count in enumerate(figures):
        if count is not None:
            label = f'engine="{engine}"'
            lines.append(f'{size}_bucket{{{label},le="+Inf"}} {count}')
            lines.append(f"{size}_count{{{label}}} {count}")
            lines.append(f"{size}_sum{{{label}}} {count * 2**20}")
    lines.append(f"# TYPE {failed}_total counter")
    lines += [
        f'{failed}_total{{engine="{engine}"}} {count}'
        for engine, count in enumerate(figures)
        if count is not None
    ]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize(
    ("answers", "transfers"),
    [
        ([(1000, 500), (1010, 505)], 15),
        ([(1000, 500), (1010, None)], 10),
        ([(1000, 500), (1010, 7)], 17),
        ([(1000, None), (1010, 7)], 17),
    ],
)
def test_an_engine_that_restarts_or_goes_counts_no_other_twice(
    answers: list[tuple[int | None, ...]], transfers: int
) -> None:
    """Each engine's growth counts, even if another engine is restarted or disappears."""
    found = _scraped([_engines(*answer) for answer in answers]).transfers().as_dict()
    assert found["num_failed_transfers"] == transfers
    assert found["bytes_transferred"]["count"] == transfers
    assert found["bytes_transferred"]["total"] == transfers * 2**20


@pytest.mark.parametrize(
    ("help_text", "failed"),
    [("Failed KV transfers.", 7),
     ("Failed KV transfers, including handshake and notification failures.", 5)],
)  # fmt: skip
def test_a_notification_that_failed_is_not_a_failed_transfer(help_text: str, failed: int) -> None:
    """The counter of vLLM 0.33 has failed notifications too, as its text says; the figure not."""
    answers = [
        f"# HELP vllm:nixl_num_failed_transfers_total {help_text}\n"
        "# TYPE vllm:nixl_num_failed_transfers_total counter\n"
        f"vllm:nixl_num_failed_transfers_total {10 + transfers}\n"
        "# TYPE vllm:nixl_num_failed_notifications_total counter\n"
        f"vllm:nixl_num_failed_notifications_total {4 + notifications}\n"
        "# TYPE vllm:nixl_num_notifications_after_expiry_total counter\n"
        f"vllm:nixl_num_notifications_after_expiry_total {late}\n"
        for transfers, notifications, late in ((0, 0, 1), (7, 2, 4))
    ]
    figures = _scraped(answers).transfers().figures()
    assert figures["num_failed_transfers"] == failed
    assert figures["num_failed_notifications"] == 2
    assert figures["num_notifications_after_expiry"] == 3
