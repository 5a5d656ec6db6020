"""The table of runs as data: what the address says, what is searched for, what is shown."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.errors import SettingError
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.listing import COLUMNS, Choice, Found, build_listing, build_search

SORTS = ["started", "name", "component", "status", "bottleneck", *(c.key for c in COLUMNS)]


@given(
    text=st.text(max_size=20).map(str.strip),
    query=st.text(max_size=20).map(str.strip),
    component=st.text(max_size=20).map(str.strip),
    sort=st.sampled_from(SORTS),
    down=st.booleans(),
    limit=st.integers(1, 1000),
)
def test_a_choice_survives_its_address(
    text: str, query: str, component: str, sort: str, down: bool, limit: int
) -> None:
    """What the user chose is the same after it went through the address."""
    choice = Choice(
        experiments=("1", "2"),
        equal={"component": component} if component else {},
        query=query,
        text=text,
        sort=f"-{sort}" if down else sort,
        limit=limit,
    )
    assert Choice.from_query(parse_qs(choice.address(), keep_blank_values=True)) == choice


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"sort": ["nothing"]}, "no column 'nothing'"),
        ({"limit": ["0"]}, "from 1 to 1000"),
        ({"limit": ["many"]}, "from 1 to 1000"),
        ({"limit": ["²"]}, "from 1 to 1000"),
    ],
)
def test_a_wrong_address_is_named(query: dict[str, list[str]], said: str) -> None:
    """A sort or a limit that there is not gets one sentence that names it."""
    with pytest.raises(SettingError, match=said):
        Choice.from_query(query)


def test_quotes_in_a_filter_are_bound() -> None:
    """A value with quotes stays a value; one with both kinds is refused by name."""
    condition, order = build_search(Choice(equal={"workflow": "it's"}, sort="-run_cpu_hours"))
    assert '= "it\'s"' in condition
    assert order == ["metrics.`run_cpu_hours` DESC"]
    with pytest.raises(SettingError, match="both kinds of quotes"):
        build_search(Choice(equal={"workflow": "'\""}))


def test_a_column_without_figures_is_left_out() -> None:
    """Only columns with a value are shown; a node's figure replaces a missing figure of the run."""
    run = PerfRun("r", run_id="1" * 32, metrics={"duration_sec": 90.0, "run_cpu_hours": 2.0})
    listing = build_listing(Found([run]), Choice(sort="run_cpu_hours"), {})
    labels = [head["label"] for head in listing.heads]
    assert labels[-2:] == ["Duration", "Held"]
    assert listing.rows[0]["cells"] == ["1 min 30 s", "2 CPU h"]
    assert listing.heads[-1]["sorted"] == "ascending"
    assert "sort=-run_cpu_hours" in listing.heads[-1]["address"]


def test_the_search_box_looks_at_name_component_and_id() -> None:
    """A text finds runs by name, component or id, whatever the case."""
    runs = [PerfRun("a", run_id="abc", name="Train"), PerfRun("b", run_id="xyz", component="prep")]
    found = {
        text: [row["id"] for row in build_listing(Found(runs), Choice(text=text), {}).rows]
        for text in ("train", "PREP", "xy", "nothing")
    }
    assert found == {"train": ["abc"], "PREP": ["xyz"], "xy": ["xyz"], "nothing": []}
