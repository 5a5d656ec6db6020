"""One sample of each peer, and the floor, each as a function to call again and again.

- floor: reads the same kernel files through open descriptors and does not parse them;
- psutil: one call per source;
- seed: the calls of lightgbm-benchmark's collector for one report: utilisation of each CPU over an
  interval of its own, memory, disk, disk I/O, and the counters of each interface;
- MLflow: its system metrics monitors, each once;
- resource-tracker: SpareCores' calls for one line of its system and process tables;
- tree (psutil): a process and its descendants, one by one, as process trackers do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psutil

Sample = Callable[[], Any]


def floor() -> Sample:
    """Return a function that reads the seed's sources through open descriptors."""
    paths = ("stat", "meminfo", "diskstats", "net/dev")
    files = [os.open(f"/proc/{path}", os.O_RDONLY) for path in paths]

    def read() -> None:
        for file in files:
            os.pread(file, 1 << 16, 0)
        os.statvfs("/")

    return read


def bare_psutil() -> Sample:
    """Return a function that asks psutil for each source once."""

    def ask() -> None:
        psutil.cpu_percent(percpu=True)
        psutil.virtual_memory()
        psutil.disk_usage("/")
        psutil.disk_io_counters()
        psutil.net_io_counters(pernic=True)

    return ask


def seed() -> Sample:
    """Return a function that takes one report as the seed does, without its wait."""
    return _take_seed_report


def _take_seed_report() -> dict[str, float]:
    busy = psutil.cpu_percent(interval=1e-6, percpu=True)
    report = {
        "cpu_avg": sum(busy) / len(busy), "cpu_min": min(busy), "cpu_max": max(busy),
        "mem": psutil.virtual_memory().percent, "disk": psutil.disk_usage("/").percent,
    }  # fmt: skip
    io = psutil.disk_io_counters(perdisk=False)
    if io is not None:
        report["read"], report["written"] = io.read_bytes / 2**20, io.write_bytes / 2**20
    nics = psutil.net_io_counters(pernic=True)
    for name, nic in nics.items():
        side = "lo" if name == "lo" else "ext"
        report[f"{side}_sent"] = report.get(f"{side}_sent", 0.0) + nic.bytes_sent / 2**20
        report[f"{side}_recv"] = report.get(f"{side}_recv", 0.0) + nic.bytes_recv / 2**20
    return report


def mlflow_monitors() -> Sample:
    """Return a function that asks each of MLflow's monitors once."""
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    # Any: MLflow annotates none of these.
    makers: list[Any] = [CPUMonitor, DiskMonitor, NetworkMonitor]
    monitors = [make() for make in makers]

    def ask() -> None:
        for monitor in monitors:
            monitor.collect_metrics()
            monitor.clear_metrics()

    return ask


def resource_tracker_system() -> Sample:
    """Return a function that takes one line of resource-tracker's system table."""
    from resource_tracker import SystemTracker

    return SystemTracker(autostart=False).get_system_stats  # type: ignore[no-any-return]  # untyped


def resource_tracker_both() -> Sample:
    """Return a function that takes one line of resource-tracker's system and process tables."""
    from resource_tracker import ProcessTracker

    system = resource_tracker_system()
    process = ProcessTracker(autostart=False).get_process_stats

    def ask() -> None:
        system()
        process(os.getpid(), True)

    return ask


def psutil_tree() -> Sample:
    """Return a function that walks this process's tree with psutil."""
    root = psutil.Process()

    def walk() -> None:
        for process in (root, *root.children(recursive=True)):
            with process.oneshot():
                process.cpu_times()
                process.memory_info()
                process.io_counters()

    return walk


def present(makers: dict[str, Callable[[], Sample]]) -> dict[str, Sample]:
    """Return the contenders whose library is installed: name → function."""
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError:
            print(f"Left out, not installed: {name}")
    return found
