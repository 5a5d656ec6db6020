"""How long tasks waited for CPU, memory or IO: the kernel's pressure stall information.

Imports cgroups, procfile and the column table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import PRESSURE_COLUMNS
from mlflow_perf.readers.cgroup.groups import Group
from mlflow_perf.readers.procfile import ProcFile
from mlflow_perf.records import Column

__all__ = ["PressureReader"]

_TOTAL = re.compile(rb"some .* total=(\d+)")
_COLUMN_OF = {"cpu": "cpu_stall_sec", "memory": "mem_stall_sec", "io": "io_stall_sec"}


class PressureReader:
    """Time in which at least one task waited for a resource, for the job's group or the node.

    Args:
        proc: Where procfs is mounted.
        group: The job's control group; its own figures are used where it is the job's alone and
            of the second version.

    Raises:
        SourceUnavailableError: When the kernel keeps no pressure figures.
    """

    name = "pressure"
    columns: Sequence[Column] = PRESSURE_COLUMNS

    def __init__(self, proc: Path | str = "/proc", *, group: Group | None = None) -> None:
        folders = [Path(proc) / "pressure"]
        if group is not None and group.version == 2 and group.is_of_a_job:
            folders.insert(0, group.folder)
        self._files: dict[str, ProcFile] = {}
        for folder in folders:
            suffix = "" if folder.name == "pressure" else ".pressure"
            self._files = _open(folder, suffix)
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


def _open(folder: Path, suffix: str) -> dict[str, ProcFile]:
    files = {}
    for resource, column in _COLUMN_OF.items():
        try:
            file = ProcFile(folder / f"{resource}{suffix}")
        except SourceUnavailableError:
            continue
        try:
            readable = _TOTAL.match(file.read())
        except OSError:  # compiled in, but switched off at boot
            readable = None
        if readable:
            files[column] = file
        else:
            file.close()
    return files
