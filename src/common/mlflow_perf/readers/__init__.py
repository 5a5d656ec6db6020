"""The readers: one per source, and the only modules that look at the machine."""

from __future__ import annotations

from mlflow_perf.readers.base import Reader
from mlflow_perf.readers.cgroup.limits import host_facts
from mlflow_perf.readers.defaults import add_reader, default_readers, open_readers

__all__ = ["Reader", "add_reader", "default_readers", "host_facts", "open_readers"]
