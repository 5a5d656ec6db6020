"""The user's choice: what the address says, and what is searched for."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.errors import SettingError
from mlflow_perf.web.choice import RUNNING, Choice, build_search, explain_condition
from mlflow_perf.web.fields import COLUMNS


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("metrics.auc == 1", "equality is written ="),
        ("metrics.auc > 1 or metrics.b > 1", "joined by AND"),
        ("auc > 0.9", "in front of it"),
        ("params.leaves = 31", "a text in quotes"),
        ("params.leaves > '31'", "are texts"),
        ("metrics.`a or b == c` >", "not in MLflow's search language"),
    ],
)
def test_a_wrong_condition_is_explained(query: str, why: str) -> None:
    """The sentence has the condition, the likely mistake and an example; not MLflow's own text."""
    said = explain_condition(query)
    assert said.startswith(f"Invalid condition {query!r}: ")
    assert why in said


SORTS = ["started", "name", "component", "metrics.auc", "params.a b", *(c.key for c in COLUMNS)]


@given(
    text=st.text(max_size=20).map(str.strip),
    query=st.text(max_size=20).map(str.strip),
    component=st.text(max_size=20).map(str.strip),
    sort=st.sampled_from(SORTS),
    down=st.booleans(),
    limit=st.integers(1, 1000),
    columns=st.lists(st.sampled_from(SORTS), unique=True, max_size=5).map(tuple),
)
def test_a_choice_survives_its_address(
    text: str,
    query: str,
    component: str,
    sort: str,
    down: bool,
    limit: int,
    columns: tuple[str, ...],
) -> None:
    """What the user chose is the same after it went through the address."""
    choice = Choice(
        experiments=("1", "2"),
        equal={"component": component} if component else {},
        query=query,
        text=text,
        sort=f"-{sort}" if down else sort,
        limit=limit,
        columns=columns,
        group="status",
        since="7d",
    )
    address = parse_qs(choice.address(), keep_blank_values=True)
    assert Choice.read(address) == (choice, "")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"sort": ["params."]}, "no column 'params.'"),
        ({"since": ["long ago"]}, "no age"),
        ({"group": ["colour"]}, "grouped by 'colour'"),
        ({"limit": ["0"]}, "from 1 to 1000"),
        ({"limit": ["many"]}, "from 1 to 1000"),
        ({"limit": ["²"]}, "from 1 to 1000"),
    ],
)
def test_a_wrong_address_is_named(query: dict[str, list[str]], said: str) -> None:
    """A sort or a limit that there is not gets one sentence that names it."""
    assert said in Choice.read(query)[1]


def test_quotes_in_a_filter_are_bound() -> None:
    """A value with quotes stays a value; one with both kinds is refused by name."""
    condition, order = build_search(Choice(equal={"workflow": "it's"}, sort="-run_cpu_hours"))
    assert '= "it\'s"' in condition
    assert order == ["metrics.`run_cpu_hours` DESC", "metrics.`node_cpu_hours` DESC"]
    with pytest.raises(SettingError, match="both kinds of quotes"):
        build_search(Choice(equal={"workflow": "'\""}))


def test_running_jobs_are_searched_with_the_same_condition() -> None:
    """A job without performance data yet is found by its status and the user's condition."""
    for ours in RUNNING:
        condition, _ = build_search(Choice(query="metrics.auc > 1"), ours)
        assert condition == f"{ours} AND metrics.auc > 1"
