"""Rules of exporting the running job's figures to a textfile."""

from __future__ import annotations

import logging
import math
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import prometheus_client.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.errors import SettingError
from mlflow_perf.integrations.prometheus import fetch
from mlflow_perf.integrations.textfile import TextfileExporter, format_report
from mlflow_perf.sampling.sampler import PerformanceReportingThread
from mlflow_perf.testing import FakeReader

REPORT = {"mem_percent": 41.5, "disk_io_read_mb": 7.0, "scrape/a b": 1.0, "bad": math.nan}


def _families(text: bytes) -> dict[str, Any]:
    families = prometheus_client.parser.text_string_to_metric_families(text.decode())
    return {family.name: family for family in families}


def _first_answer(url: str) -> str:
    deadline = time.monotonic() + 60
    while True:
        try:
            return fetch(url)[0].decode()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_report_is_read_back_by_the_official_parser() -> None:
    """Each finite value is a gauge or counter with its help and the labels of the job."""
    families = _families(format_report(REPORT, {"component": "train", "node": "0"}))
    assert set(families) == {
        "mlflow_perf_mem_percent", "mlflow_perf_disk_io_read_mb", "mlflow_perf_scrape_a_b",
    }  # fmt: skip
    memory = families["mlflow_perf_mem_percent"]
    assert memory.type == "gauge"
    assert memory.documentation
    assert memory.samples[0].labels == {"component": "train", "node": "0"}
    assert memory.samples[0].value == 41.5
    assert families["mlflow_perf_disk_io_read_mb"].type == "counter"


@given(st.text(max_size=50).filter(lambda text: "\r" not in text))
def test_any_label_value_survives(value: str) -> None:
    """Quotes, backslashes and line ends in a label come back as they were."""
    (family,) = _families(format_report({"mem_percent": 1.0}, {"l": value})).values()
    assert family.samples[0].labels == {"l": value}


def test_file_is_replaced_as_a_whole_and_removed(tmp_path: Path) -> None:
    """Nothing but the file is left after a write, and nothing at all after close."""
    exporter = TextfileExporter(tmp_path / "train.prom")
    exporter({"mem_percent": 1.0})
    exporter({"mem_percent": 2.0})
    assert [path.name for path in tmp_path.iterdir()] == ["train.prom"]
    assert (tmp_path / "train.prom").read_text().endswith("mlflow_perf_mem_percent 2.0\n")
    exporter.close()
    exporter.close()
    assert list(tmp_path.iterdir()) == []


def test_fault_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that goes away costs one warning, however many reports follow."""
    folder = tmp_path / "metrics"
    folder.mkdir()
    exporter = TextfileExporter(folder / "train.prom")
    folder.rmdir()
    with caplog.at_level(logging.WARNING):
        exporter(REPORT)
        exporter(REPORT)
    assert len(caplog.records) == 1


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    """Another ending, a missing folder or an impossible label raises at the call."""
    for path in (tmp_path / "train.txt", tmp_path / "none" / "train.prom"):
        with pytest.raises(SettingError, match="node_exporter"):
            TextfileExporter(path)
    with pytest.raises(SettingError, match="label"):
        TextfileExporter(tmp_path / "train.prom", {"a-b": "c"})


@pytest.mark.e2e
def test_node_exporter_serves_it(tmp_path: Path) -> None:
    """A real node_exporter serves the figures of a real sampler from the file."""
    program = shutil.which("prometheus-node-exporter")
    if program is None:
        pytest.skip("prometheus-node-exporter is not installed (Debian: apt-get install …)")
    exporter = TextfileExporter(tmp_path / "train.prom", {"component": "train"})
    thread = PerformanceReportingThread(
        0.05, callback_on_loop=exporter, readers=[FakeReader([{"mem_percent": 33.0}])]
    )
    thread.start()
    thread.finalize()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with subprocess.Popen(
        [program, f"--web.listen-address={address}", "--collector.disable-defaults",
         "--collector.textfile", f"--collector.textfile.directory={tmp_path}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as server:  # fmt: skip
        text = _first_answer(f"http://{address}/metrics")
        server.terminate()
    assert 'mlflow_perf_mem_percent{component="train"} 33' in text
