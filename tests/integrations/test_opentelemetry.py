"""Rules of exporting the running job's figures through OpenTelemetry's official SDK."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.integrations.opentelemetry import OpenTelemetryExporter

REPORT = {"mem_percent": 41.5, "disk_io_read_mb": 7.0, "scrape/a b": 1.0, "bad": math.nan}


@pytest.fixture
def sdk() -> Any:
    """A reader of the SDK that keeps metrics in memory, and its provider."""
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    metrics = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = export.InMemoryMetricReader()
    return reader, metrics.MeterProvider(metric_readers=[reader])


def _collected(reader: Any) -> dict[str, Any]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_report_is_exported(sdk: Any) -> None:
    """Each finite value is an observation with its unit and the attributes of the job."""
    reader, provider = sdk
    exporter = OpenTelemetryExporter({"component": "train"}, provider=provider)
    exporter(REPORT | {"scrape/a b": 2.0})
    exporter({"mem_percent": 42.0, "disk_io_read_mb": 9.0})
    collected = _collected(reader)
    (memory,) = collected["mlflow_perf.mem_percent"].data.data_points
    assert (memory.value, dict(memory.attributes)) == (42.0, {"component": "train"})
    disk = collected["mlflow_perf.disk_io_read_mb"]
    assert disk.unit == "MiBy"
    assert disk.data.is_monotonic
    assert disk.data.data_points[0].value == 9.0
    assert "mlflow_perf.bad" not in collected


def test_nothing_is_exported_after_close(sdk: Any) -> None:
    """What has ended has no present figures."""
    reader, provider = sdk
    exporter = OpenTelemetryExporter(provider=provider)
    exporter(REPORT)
    exporter.close()
    assert all(not metric.data.data_points for metric in _collected(reader).values())


def test_the_next_block_of_a_process_is_exported_too(sdk: Any) -> None:
    """The SDK has one instrument of a name: each exporter of a provider is asked through it."""
    reader, provider = sdk
    for value in (1.0, 2.0):
        exporter = OpenTelemetryExporter({"node": "0"}, provider=provider)
        exporter({"mem_percent": value})
        (point,) = _collected(reader)["mlflow_perf.mem_percent"].data.data_points
        assert point.value == value
        exporter.close()


def test_missing_sdk_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without opentelemetry, an exporter raises and names what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingDependencyError, match="opentelemetry"):
        OpenTelemetryExporter()
