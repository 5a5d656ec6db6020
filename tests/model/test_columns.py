"""The table of columns."""

from __future__ import annotations

from mlflow_perf.model.columns import (
    COLUMNS,
    CPU_COLUMNS,
    GPU_COLUMNS,
    lookup_kind,
    make_gpu_columns,
    parse_gpu_index,
)
from mlflow_perf.records import Kind


def test_every_column_is_described() -> None:
    """A column has a meaning for people, and its name is its key in the table."""
    assert {column.name for column in (*CPU_COLUMNS, *GPU_COLUMNS)} <= COLUMNS.keys()
    for name, column in COLUMNS.items():
        assert column.name == name
        assert column.meaning.endswith(".")


def test_a_gpu_has_columns_of_its_own() -> None:
    """The columns of one GPU have its number in their names, and are found by it."""
    names = [column.name for column in make_gpu_columns(12)]
    assert names == ["gpu12_utilization_pct", "gpu12_mem_percent", "gpu12_energy_wh"]
    assert {parse_gpu_index(name) for name in names} == {12}
    assert parse_gpu_index("gpu12_speed") is None
    assert parse_gpu_index("gpu_mem_percent") is None


def test_the_kind_of_an_unknown_column_is_gauge() -> None:
    """Only a column of the table can be a counter."""
    assert lookup_kind("disk_io_read_mb") is Kind.COUNTER
    assert lookup_kind("gpu3_energy_wh") is Kind.COUNTER
    assert lookup_kind("gpu3_mem_percent") is Kind.GAUGE
    assert lookup_kind("queue_length") is Kind.GAUGE
