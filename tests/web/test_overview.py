"""The overview of the fleet, as data."""

from __future__ import annotations

from mlflow_perf.tracking.fleet_sums import FIGURES, Sums
from mlflow_perf.web.overview import WEEK_SEC, build_overview

_NOW = 1_795_000_000.0


def _sums(group: str, runs: int, held: float, unused: float) -> Sums:
    figures = {**dict.fromkeys(FIGURES), "cpu_hours": held, "unused_cpu_hours": unused}
    return Sums(group, runs, 1, figures)


def test_totals_are_compared_with_the_time_before() -> None:
    """Tiles have the span's totals and their change; bars are shares of the largest group."""
    asked: list[tuple[str, float | None, float | None]] = []

    def sum_runs(by: str, since: float | None, until: float | None) -> list[Sums]:
        asked.append((by, since, until))
        if by == "week":
            return [_sums("2965", 3, 5.0, 1.0), _sums("2966", 4, 10.0, 4.0)]
        if until is not None:
            return [_sums("fit", 5, 10.0, 2.0)]
        return [_sums("fit", 8, 15.0, 6.0), _sums("load", 2, 5.0, 1.0)]

    view = build_overview(sum_runs, {"1": "e"}, by="component", span_sec=WEEK_SEC, now=_NOW)
    assert view is not None
    tiles = {tile.label: (tile.value, tile.detail) for tile in view.tiles}
    assert tiles["Runs"] == ("10", "+100% on the time before")
    assert tiles["CPU time held"] == ("20 CPU h", "+100% on the time before")
    assert tiles["CPU time used by nobody"] == ("7 CPU h", "35% of it")
    assert [name for name, *_ in view.rows] == ["fit", "load"]
    assert view.rows[0][1] == {"component": "fit"}
    assert [round(week.used_pct + week.unused_pct) for week in view.weeks] == [50, 100]
    assert ("component", _NOW - WEEK_SEC, None) in asked


def test_short_times_have_a_unit_that_shows_them() -> None:
    """Two minutes of CPU time are no `0.0 h`: neither in a tile, nor in a row, nor in a week."""

    def sum_runs(by: str, since: float | None, until: float | None) -> list[Sums]:
        return [] if until is not None else [_sums("2966", 2, 0.04, 0.01)]

    view = build_overview(sum_runs, {}, by="component", span_sec=WEEK_SEC, now=_NOW)
    assert view is not None
    tiles = {tile.label: tile.value for tile in view.tiles}
    assert (tiles["CPU time held"], tiles["CPU time used by nobody"]) == ("144 CPU s", "36 CPU s")
    assert "CPU s held" in view.header
    assert [text for text, _ in view.rows[0][2]][2:4] == ["144.0", "36.0"]
    assert view.weeks[0].text.startswith("144 CPU s held, 36 CPU s used by nobody")


def test_a_store_without_tables_has_no_overview() -> None:
    """Stores that cannot sum up give None, which the page says."""
    view = build_overview(lambda *_: None, {}, by="user", span_sec=WEEK_SEC, now=_NOW)
    assert view is None


def test_negative_hours_have_no_bar() -> None:
    """Whoever logged them, and however small the others are."""
    sums = [_sums("2965", 1, -1e9, -1.0), _sums("2966", 1, 5e-324, 0.0)]
    view = build_overview(lambda *_: sums, {}, by="component", span_sec=WEEK_SEC, now=_NOW)
    assert view is not None
    assert [[share for _, share in cells][2] for _, _, cells in view.rows] == [100, 0]
