"""The user's choice of runs, columns and order, read from the address.

The address holds the whole choice, so that it can be kept and sent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from mlflow_perf.core.format import parse_age
from mlflow_perf.errors import SettingError
from mlflow_perf.tracking.search import quote_literal
from mlflow_perf.web.fields import TAGS, Field, read_field

MOST_RUNS = 1000
"""Most runs of one page."""

MOST_COLUMNS = 60
_DIGITS = 19  # more of them are beyond what a database counts to
MEASURED = "tags.`mlflow_perf.component` LIKE '%'"
"""Runs with performance data, in MLflow's search language."""

RUNNING = tuple(
    f"attributes.status = 'RUNNING' AND {mark}"
    for mark in ("tags.`mlflow_perf.hostname` LIKE '%'",
                 "metrics.`system/cpu_utilization_percentage` >= 0")
)  # fmt: skip
"""Jobs that run now: those that our plugin saw begin, and those with MLflow's system metrics."""

_GROUPS = ("component", "experiment", "user", "status", "bottleneck", "workflow")
_FILTERS = {name: f"tags.`{tag}`" for name, tag in TAGS.items()} | {"status": "attributes.status"}


@dataclass(frozen=True)
class Choice:
    """The user's choice, as in the address.

    Attributes:
        experiments: Ids; empty for all.
        equal: Filter → its required value.
        query: A further condition in MLflow's search language.
        text: A part of the name, the component or the id.
        sort: Field, with `-` in front for the largest first.
        limit: Most runs.
        page: Token of a further page.
        workspace: The workspace of MLflow's that is read; empty for the default.
        columns: Names of the fields that are shown; empty for those that fit the runs.
        group: Name of the field by which rows are grouped; empty for none.
        since: Age of the oldest run, such as `7d`; empty for any.
    """

    experiments: tuple[str, ...] = ()
    equal: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    text: str = ""
    sort: str = "-started"
    limit: int = MOST_RUNS
    page: str = ""
    workspace: str = ""
    columns: tuple[str, ...] = ()
    group: str = ""
    since: str = ""

    @property
    def offset(self) -> int:
        """How many rows come before the page; 0 if `page` is a token of MLflow's search."""
        return int(self.page) if self.page.isdecimal() and len(self.page) < _DIGITS else 0

    @property
    def order(self) -> Field:
        """The field by which runs are sorted."""
        return read_field(self.sort.removeprefix("-")) or Field(
            "started", "attribute", "start_time"
        )

    @property
    def shown(self) -> list[Field]:
        """The fields that the user chose as columns."""
        return [known for name in self.columns if (known := read_field(name)) is not None]

    @property
    def since_ms(self) -> int | None:
        """When the oldest run started, Unix time in milliseconds."""
        return int(1000 * (time.time() - parse_age(self.since))) if self.since else None

    @classmethod
    def read(cls, values: Mapping[str, list[str]]) -> tuple[Choice, str]:
        """Return the choice in an address, and a sentence on its error, or `""`."""
        one = {name: found[0].strip() for name, found in values.items() if found}
        problem, sort, since = "", one.get("sort") or "-started", one.get("since", "")
        if read_field(sort.removeprefix("-")) is None:
            problem, sort = f"There is no column {sort[:60]!r} to sort by.", "-started"
        limit = one.get("limit") or str(MOST_RUNS)
        digits = limit.isascii() and limit.isdigit() and len(limit) < _DIGITS
        if not digits or not 1 <= int(limit) <= MOST_RUNS:
            problem = f"limit is {limit[:20]!r}; it must be a whole number from 1 to {MOST_RUNS}."
            limit = str(MOST_RUNS)
        try:
            parse_age(since or "1d")
        except SettingError as error:
            problem, since = str(error), ""
        group = one.get("group", "")
        if group and group not in _GROUPS and not group.startswith(("params.", "metrics.")):
            problem, group = f"Runs cannot be grouped by {group[:60]!r}.", ""
        choice = cls(
            experiments=tuple(e for e in values.get("experiment", []) if e),
            equal={name: one[name] for name in _FILTERS if one.get(name)},
            query=one.get("filter", ""),
            text=one.get("q", ""),
            sort=sort,
            limit=int(limit),
            page=one.get("page", ""),
            workspace=one.get("workspace", ""),
            columns=tuple(dict.fromkeys(c for c in values.get("col", []) if c))[:MOST_COLUMNS],
            group=group,
            since=since,
        )
        return choice, problem

    def pairs(self, **changes: Any) -> list[tuple[str, str]]:
        """Return the names and values of the address, with changes; an empty value is left out."""
        found: list[tuple[str, str]] = [("experiment", e) for e in self.experiments]
        values = {
            **self.equal,
            "filter": self.query,
            "q": self.text,
            "since": self.since,
            "group": self.group,
            "sort": "" if self.sort == "-started" else self.sort,
            "workspace": self.workspace,
            "limit": "" if self.limit == MOST_RUNS else str(self.limit),
        }
        columns = changes.pop("columns", self.columns)
        values.update(changes)
        if values["sort"] == "-started":
            values["sort"] = ""
        found += [(name, str(value)) for name, value in values.items() if value]
        return found + [("col", name) for name in columns]

    def address(self, **changes: Any) -> str:
        """Return the query of the address, with changes; an empty value leaves a name out."""
        return urlencode(self.pairs(**changes))


def explain_condition(query: str) -> str:
    """Return why MLflow's search language does not take a condition, and how to write one."""
    outside = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "x", query)
    reason = "it is not in MLflow's search language"
    if "==" in outside:
        reason = "equality is written = there"
    elif re.search(r"\b(or|not)\b", outside, re.IGNORECASE):
        reason = "comparisons can only be joined by AND"
    elif not re.search(r"\b(metrics?|params?|tags?|attributes?)\.", outside):
        reason = "a name needs metrics., params., tags. or attributes. in front of it"
    elif re.search(r"\b(params?|tags?)\.[^=<>! ]+ *(=|!=) *[^\s=x]", outside):
        reason = "a value of a parameter or a tag is a text in quotes"
    elif re.search(r"\b(params?|tags?)\.[^=<>! ]+ *[<>]", outside):
        reason = "parameters and tags are texts, which can only be compared by =, != and LIKE"
    return (
        f"Invalid condition {query[:200]!r}: {reason}. "
        "Write it like: metrics.auc > 0.9 AND params.leaves = '63'."
    )


def build_search(choice: Choice, ours: str = MEASURED) -> tuple[str, list[str]]:
    """Return the condition and the order in MLflow's search language.

    The component is not in the condition: that language has no "or" for a run's several components.

    Args:
        choice: The user's choice.
        ours: The condition for which runs are ours: `MEASURED`, or one of `RUNNING`.

    Raises:
        SettingError: When a value holds both kinds of quotes, which that language cannot express.
    """
    conditions = [ours]
    equal = {name: value for name, value in choice.equal.items() if name != "component"}
    conditions += [f"{_FILTERS[name]} = {quote_literal(value)}" for name, value in equal.items()]
    if choice.since_ms is not None:
        conditions.append(f"attributes.start_time >= {choice.since_ms}")
    if choice.query:
        conditions.append(choice.query)
    direction = "DESC" if choice.sort[0] == "-" else "ASC"
    return " AND ".join(conditions), [f"{n} {direction}" for n in choice.order.search_names]
