"""Strict JSON, plain data and whole files."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlflow_perf.core.json_io import (
    from_json,
    read_number,
    read_numbers,
    require_number,
    round_columns,
    to_json,
    to_plain,
    write_text,
)

LARGEST = sys.float_info.max
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def test_json_is_strict() -> None:
    """NaN and infinity are not JSON: they become null."""
    text = to_json({"a": [1.0, math.nan, math.inf], "b": {"c": -math.inf}})
    assert json.loads(text) == {"a": [1.0, None, None], "b": {"c": None}}
    assert "NaN" not in text


@given(plain)
def test_json_means_the_same_to_pythons_own_reader(data: Any) -> None:
    """Any plain data is strict JSON, and both readers agree on it."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = to_json(data)
    assume(r"\ud" not in text)  # half a pair of surrogates is no character: see below
    assert from_json(text) == json.loads(text, parse_constant=refuse)
    assert from_json(text.encode()) == from_json(text)


def test_json_takes_subclasses_and_keys_that_are_not_text() -> None:
    """A numpy number is a number, and a key becomes a text."""
    assert from_json(to_json({1: np.float64(1.5), None: np.float64("nan")})) == {
        "1": 1.5,
        "None": None,
    }
    assert to_json({"half": "\ud800"}) == '{"half":"\\ud800"}'
    with pytest.raises(TypeError):
        to_json({"a": object()})


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("[NaN, Infinity, -Infinity, 1]", [None, None, None, 1]),
        ("1e999", math.inf),
        ("9" * 400, LARGEST),
        ("[-" + "9" * 5000 + "]", [-LARGEST]),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('"a\\udc80"', "a?"),
        ("\ufeff{}".encode(), {}),
        ('{"a": 1}'.encode("utf-16"), {"a": 1}),
    ],
)
def test_foreign_json_is_read_too(text: str | bytes, data: Any) -> None:
    """Other programs write NaN, huge numbers, half a surrogate pair and other encodings."""
    assert from_json(text) == data


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nul", b"\xff", "01"])
def test_text_that_is_not_json_is_refused(text: str | bytes) -> None:
    """Whatever is not JSON is a ValueError."""
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_plain_data_holds_dicts_and_lists_only() -> None:
    """Dataclasses become dicts and tuples become lists, at any depth."""

    @dataclass(frozen=True)
    class Step:
        name: str
        needs: tuple[str, ...] = ()

    @dataclass(frozen=True)
    class Flow:
        steps: tuple[Step, ...]
        totals: dict[str, float]

    flow = Flow((Step("fit", ("load",)),), {"hours": 1.0})
    assert to_plain(flow) == {
        "steps": [{"name": "fit", "needs": ["load"]}],
        "totals": {"hours": 1.0},
    }


@pytest.mark.parametrize("value", [True, "1", None, [1], math.nan, math.inf, 10**400])
def test_a_number_is_finite(value: Any) -> None:
    """Whatever is not a finite number is None, left out, or refused."""
    assert read_number(value) is None
    assert read_numbers({"a": value, "b": 2}) == {"b": 2.0}
    assert read_numbers([value]) == {}
    with pytest.raises(ValueError, match="not a finite number"):
        require_number(value)


def test_a_number_may_have_a_bound() -> None:
    """A number below the smallest allowed one is refused, and the bound is named."""
    assert require_number(-3) == -3.0
    assert require_number(0, least=0) == 0.0
    with pytest.raises(ValueError, match="-1 is not a finite number of at least 0"):
        require_number(-1, least=0)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """A file has the new text and usual permissions; a failure leaves no other file behind."""
    path = write_text(tmp_path / "a.txt", "old")
    assert write_text(path, "é").read_bytes() == "é".encode()
    beside = tmp_path / "b.txt"
    beside.touch()
    assert path.stat().st_mode == beside.stat().st_mode
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text("utf-8") == "é"
    assert {p.name for p in tmp_path.iterdir()} == {"a.txt", "b.txt"}


def test_columns_are_rounded_below_what_a_source_resolves() -> None:
    """Stored columns are short; a missing value is None."""
    table = {
        "mem_percent": [1.23456, math.nan],
        "timestamp": [1.0004999],
        "disk_io_read_mb": [0.00015],
    }
    assert round_columns(table) == {
        "mem_percent": [1.23, None],
        "timestamp": [1.0],
        "disk_io_read_mb": [0.0001],
    }
