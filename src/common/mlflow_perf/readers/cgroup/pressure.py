"""How long tasks waited for CPU, memory or I/O: the kernel's pressure stall information."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import PRESSURE_COLUMNS
from mlflow_perf.readers.cgroup.groups import Group
from mlflow_perf.readers.procfile import ProcFile, open_first
from mlflow_perf.records import Column

_TOTAL = re.compile(rb"some .* total=(\d+)")
_COLUMNS = {"cpu": "cpu_stall_sec", "memory": "mem_stall_sec", "io": "io_stall_sec"}


class PressureReader:
    """Time in which at least one task waited for a resource, in the job's group or on the node.

    Args:
        proc: Where procfs is mounted.
        group: The job's control group. Its own pressure is used where the group belongs to the job
            alone and is of the second version; otherwise the node's.

    Raises:
        SourceUnavailableError: When the kernel keeps no pressure stall information.
    """

    name = "pressure"
    columns: Sequence[Column] = PRESSURE_COLUMNS

    def __init__(self, proc: Path | str = "/proc", *, group: Group | None = None) -> None:
        places = [(f"{proc}/pressure", "")]
        if group is not None and group.version == 2 and group.is_of_a_job:
            places.insert(0, (str(group.folder), ".pressure"))
        self._files: dict[str, ProcFile] = {}
        for folder, suffix in places:
            for resource, column in _COLUMNS.items():
                file = open_first(f"{folder}/{resource}{suffix}")
                if file is None:
                    continue
                try:
                    readable = _TOTAL.match(file.read())
                except OSError:  # compiled in, but switched off at boot
                    readable = None
                if readable:
                    self._files[column] = file
                else:
                    file.close()
            if self._files:
                return
        raise SourceUnavailableError("The kernel keeps no pressure stall information.")

    def read(self, report: dict[str, float]) -> None:
        """Put the stall times since boot, in seconds, into the report."""
        for column, file in self._files.items():
            found = _TOTAL.match(file.read())
            if found:
                report[column] = int(found[1]) / 1e6

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
