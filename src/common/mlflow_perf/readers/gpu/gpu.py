"""The GPUs that the job owns: utilisation, memory, energy.

Each maker's library is imported by one module, and asked in a thread: opening a driver can take a
second, and a broken one never answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import GPU_COLUMNS, make_gpu_columns
from mlflow_perf.readers.background import Background
from mlflow_perf.records import MB, Column

_JOULES_IN_WH = 3600.0
_PATIENCE_SEC = 0.1
"""For a driver that has answered before: it is slow while processes leave the GPU."""
_DEVICE = re.compile(r"(nvidia|renderD)\d+")


@dataclass(frozen=True)
class GpuState:
    """The state of a GPU at one instant; None for values that it does not report.

    Attributes:
        busy_pct: Share of the last moment in which it computed: for the job, where the others' part
            is known, else for anyone.
        used_bytes: Memory in use, likewise.
        whole_bytes: Its whole memory.
        energy_j: Energy used since its driver was loaded, by anyone.
        others_busy_pct: Share of the last moment in which it computed for others.
        others_bytes: Memory in use by others.
    """

    busy_pct: float | None = None
    used_bytes: float | None = None
    whole_bytes: float | None = None
    energy_j: float | None = None
    others_busy_pct: float | None = None
    others_bytes: float | None = None


class Gpu(Protocol):
    """One GPU of the job, or one slice of a GPU.

    Attributes:
        uuid: Its unique name.
    """

    uuid: str

    def state(self) -> GpuState:
        """Return its present state."""
        ...


GpuT = TypeVar("GpuT", bound=Gpu)

OpenGpus = Callable[[], "Sequence[Gpu]"]
"""Opens a maker's library and returns the job's GPUs, in the job's order.

Called again now and then: a rank that starts late may bring a GPU of its own.
"""

Others = Callable[[tuple[str, ...]], Iterable[Mapping[str, str]]]
"""Returns the environments of the node's other ranks, given the variables that name devices."""


def list_visible_devices(
    names: Sequence[str], environ: Mapping[str, str] = os.environ
) -> list[str] | None:
    """Return the devices that the environment leaves visible, as it names them.

    Args:
        names: Variables, the narrowest first; the first that is set counts.
        environ: Environment variables.

    Returns:
        Indices, UUIDs or beginnings of UUIDs; empty for none; None for all.
    """
    text = next((environ[name] for name in names if name in environ), "all").strip()
    if text.lower() == "all":
        return None
    if text.lower() in ("", "none", "void", "nodevfiles"):
        return []
    devices: list[str] = []
    for device in (part.strip() for part in text.split(",")):
        # As in CUDA, an invalid entry hides itself and all entries after it.
        if not device or device.startswith("-"):
            break
        devices.append(device)
    return devices


def find_visible_gpus(
    find: Callable[[str], GpuT | None],
    names: tuple[str, ...],
    environ: Mapping[str, str],
    others: Others | None = None,
) -> list[GpuT] | None:
    """Return the GPUs that any rank on this node may use.

    Args:
        find: Returns the GPU of a device name, None where there is none.
        names: Variables that name devices, as for `list_visible_devices`.
        environ: This rank's environment.
        others: Returns the other ranks' environments, given `names`.

    Returns:
        Each GPU once, this rank's own first; None for all GPUs.
    """
    devices = list_visible_devices(names, environ)
    if devices is None:
        return None
    for other in () if others is None else others(names):
        visible = list_visible_devices(names, other)
        if visible is None:
            return None
        devices += visible
    found = [gpu for device in devices if (gpu := find(device)) is not None]
    # One rank may name a GPU by its index, another rank the same one by its UUID.
    return list({gpu.uuid: gpu for gpu in found}.values())


class GpuReader:
    """Each GPU of the job, and all of them together.

    Args:
        opener: Opens the maker's library.
        marks: Files of which at least one exists where the driver is; checking them is cheap.

    Raises:
        SourceUnavailableError: When the driver is not installed here.
    """

    name = "gpu"

    def __init__(self, opener: OpenGpus, *, marks: Sequence[str] = ()) -> None:
        if marks and not any(map(os.path.exists, marks)):
            raise SourceUnavailableError(f"None of {', '.join(marks)} exists.")
        files = [file for file in Path("/dev").glob("*") if _DEVICE.fullmatch(file.name)]
        # At least 8: slices of one GPU have no files of their own.
        self.columns: Sequence[Column] = (
            *GPU_COLUMNS,
            *(column for index in range(max(8, len(files))) for column in make_gpu_columns(index)),
        )

        def open_source() -> Callable[[], list[GpuState]]:
            gpus, asked = list(opener()), 0

            def ask() -> list[GpuState]:
                nonlocal asked
                asked += 1
                # At the 2nd, 4th, 8th … question, and then at every 64th.
                if asked > 1 and asked % 64 & (asked % 64 - 1) == 0:
                    known = {gpu.uuid for gpu in gpus}
                    gpus.extend(gpu for gpu in opener() if gpu.uuid not in known)
                return [gpu.state() for gpu in gpus]

            return ask

        self._source = Background(open_source, name="perf-gpu")
        self._has_answered = False

    def read(self, report: dict[str, float]) -> None:
        """Put the newest values of the GPUs into the report."""
        states = self._source.newest(_PATIENCE_SEC if self._has_answered else None)
        if not states:
            return
        self._has_answered = True
        busy: list[float] = []
        used = whole = 0.0
        for index, state in enumerate(states):
            if state.busy_pct is not None:
                busy.append(_limit_percent(state.busy_pct))
                report[f"gpu{index}_utilization_pct"] = busy[-1]
            if state.used_bytes is not None and state.whole_bytes:
                percent = _limit_percent(100.0 * state.used_bytes / state.whole_bytes)
                report[f"gpu{index}_mem_percent"] = percent
                used, whole = used + state.used_bytes, whole + state.whole_bytes
            if state.energy_j is not None and state.energy_j >= 0:
                report[f"gpu{index}_energy_wh"] = state.energy_j / _JOULES_IN_WH
        report["gpu_count"] = float(len(states))
        if busy:
            report["gpu_utilization_pct"] = sum(busy) / len(busy)
        if whole:
            report["gpu_mem_percent"] = _limit_percent(100.0 * used / whole)
        held = [state.used_bytes for state in states if state.used_bytes is not None]
        if held:
            report["gpu_mem_mb"] = max(held) / MB
        # The part of others is known where it is known of every GPU that has the figure.
        shared = [s.others_busy_pct for s in states if s.busy_pct is not None]
        others_busy = [pct for pct in shared if pct is not None]
        if others_busy and len(others_busy) == len(shared):
            report["gpu_others_utilization_pct"] = sum(others_busy) / len(others_busy)
        taken = [s.others_bytes for s in states if s.used_bytes is not None and s.whole_bytes]
        others_used = [used for used in taken if used is not None]
        if others_used and len(others_used) == len(taken):
            report["gpu_others_mem_percent"] = _limit_percent(100.0 * sum(others_used) / whole)

    def close(self) -> None:
        """End the thread."""
        self._source.close()


def _limit_percent(value: float) -> float:
    return min(100.0, max(0.0, float(value)))
