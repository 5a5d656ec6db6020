"""The GPUs that the job owns: how busy, how full, how much energy. Imports the column table.

The libraries of the makers are each imported by one module, in a thread of their own: opening a
driver can take a second, and a sick one never answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import GPU_COLUMNS, make_gpu_columns
from mlflow_perf.readers.background import Background
from mlflow_perf.records import Column

__all__ = [
    "Gpu",
    "GpuReader",
    "GpuState",
    "OpenGpus",
    "Others",
    "gpus_of",
    "visible_devices",
]

_JOULES_IN_WH = 3600.0
_DEVICE = re.compile(r"(nvidia|renderD)\d+")


@dataclass(frozen=True)
class GpuState:
    """A GPU at an instant; None where it does not tell.

    Attributes:
        busy_pct: Share of the last moment in which it computed.
        used_bytes: Memory in use.
        whole_bytes: Memory there is.
        energy_j: Energy used since its driver was loaded.
    """

    busy_pct: float | None = None
    used_bytes: float | None = None
    whole_bytes: float | None = None
    energy_j: float | None = None


class Gpu(Protocol):
    """One GPU of the job, or one slice of one.

    Attributes:
        uuid: Tells it from all others.
    """

    uuid: str

    def state(self) -> GpuState:
        """Return how it is now."""
        ...


OpenGpus = Callable[[], "Sequence[Gpu]"]
"""Opens a maker's library and returns the job's GPUs, in the job's order.

Called again now and then: a rank that starts late may bring a GPU of its own.
"""


def visible_devices(
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
        # As CUDA does: what comes after an entry that is no device is not visible.
        if not device or device.startswith("-"):
            break
        devices.append(device)
    return devices


Others = Callable[[tuple[str, ...]], Iterable[Mapping[str, str]]]
"""From the variables that name devices to the environments of the node's other ranks."""


def gpus_of(
    find: Callable[[str], Gpu | None],
    names: tuple[str, ...],
    environ: Mapping[str, str],
    others: Others | None = None,
) -> list[Gpu] | None:
    """Return the GPUs that this rank or another one on the node may use.

    Args:
        find: Returns the GPU of a name, as `names` hold it; None where there is none.
        names: As for `visible_devices`.
        environ: This rank's environment.
        others: Returns the other ranks' environments, given `names`.

    Returns:
        Each once, this rank's own first; None for all.
    """
    wanted = _visible_to_any(names, environ, others)
    if wanted is None:
        return None
    found = [gpu for name in wanted if (gpu := find(name)) is not None]
    # One rank may name a GPU by its number, another one by its UUID.
    return list({gpu.uuid: gpu for gpu in found}.values())


def _visible_to_any(
    names: tuple[str, ...], environ: Mapping[str, str], others: Others | None
) -> list[str] | None:
    found = visible_devices(names, environ)
    if found is None or others is None:
        return found
    for other in others(names):
        more = visible_devices(names, other)
        if more is None:
            return None
        found += more
    return list(dict.fromkeys(found))


def _device_files(dev: Path) -> int:
    return sum(1 for path in dev.iterdir() if _DEVICE.fullmatch(path.name)) if dev.is_dir() else 0


class GpuReader:
    """Each GPU of the job, and all of them together.

    Args:
        opener: Opens the maker's library.
        marks: Files of which one is there when the driver is: asking costs next to nothing.
        dev: Where the devices' files are; tells how many columns there can be.

    Raises:
        SourceUnavailableError: When there is no such driver here.
    """

    name = "gpu"

    def __init__(
        self, opener: OpenGpus, *, marks: Sequence[str] = (), dev: Path | str = "/dev"
    ) -> None:
        if marks and not any(Path(mark).exists() for mark in marks):
            raise SourceUnavailableError(f"None of {', '.join(marks)} is there.")
        # At least 8: slices of one GPU have no files of their own.
        count = max(8, _device_files(Path(dev)))
        self.columns: Sequence[Column] = (
            *GPU_COLUMNS,
            *(column for index in range(count) for column in make_gpu_columns(index)),
        )
        self._source = Background(lambda: _Gpus(opener).states, name="perf-gpu")

    def read(self, report: dict[str, float]) -> None:
        """Put the newest figures of the GPUs into the report."""
        states = self._source.newest()
        if states:
            for index, state in enumerate(states):
                report.update(_of_one(f"gpu{index}_", state))
            report.update(_of_all(states))

    def close(self) -> None:
        """End the thread."""
        self._source.close()


class _Gpus:
    """The job's GPUs, which may become more while its ranks start."""

    def __init__(self, opener: OpenGpus) -> None:
        self._opener = opener
        self._gpus = list(opener())
        self._asked = 0

    def states(self) -> list[GpuState]:
        self._asked += 1
        # At the 2nd, 4th, 8th … time, and then at every 64th.
        if self._asked > 1 and self._asked % 64 & (self._asked % 64 - 1) == 0:
            known = {gpu.uuid for gpu in self._gpus}
            self._gpus += [gpu for gpu in self._opener() if gpu.uuid not in known]
        return [gpu.state() for gpu in self._gpus]


def _of_one(prefix: str, state: GpuState) -> dict[str, float]:
    values = {}
    if state.busy_pct is not None:
        values["utilization_pct"] = _percent(state.busy_pct)
    if state.used_bytes is not None and state.whole_bytes:
        values["mem_percent"] = _percent(100.0 * state.used_bytes / state.whole_bytes)
    if state.energy_j is not None and state.energy_j >= 0:
        values["energy_wh"] = state.energy_j / _JOULES_IN_WH
    return {prefix + name: value for name, value in values.items()}


def _percent(value: float) -> float:
    return min(100.0, max(0.0, float(value)))


def _of_all(states: Sequence[GpuState]) -> dict[str, float]:
    report = {"gpu_count": float(len(states))}
    busy = [_percent(s.busy_pct) for s in states if s.busy_pct is not None]
    if busy:
        report["gpu_utilization_pct"] = sum(busy) / len(busy)
    full = [
        (s.used_bytes, s.whole_bytes) for s in states if s.used_bytes is not None and s.whole_bytes
    ]
    if full:
        used, whole = map(sum, zip(*full, strict=True))
        report["gpu_mem_percent"] = _percent(100.0 * used / whole)
    return report
