"""Tells the job's processes on a GPU from those of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mlflow_perf.readers.procfile import read_text

_INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel
_MPS_SERVER = "nvidia-cuda-mps-server"[:15]  # the kernel cuts names


class GpuProcesses:
    """Tells whose the processes are that a driver names.

    In a PID namespace of its own, a container for example, a driver either leaves out the processes
    of others (NVIDIA's open one) or numbers all as the host does: then nobody is told apart.

    Args:
        owns: Returns whether a living process is one of the job's; None where that is unknown.
        proc: Where procfs is mounted.
    """

    def __init__(self, owns: Callable[[int], bool | None], *, proc: Path | str = "/proc") -> None:
        self._owns, self._proc = owns, Path(proc)
        self._seen: dict[int, bool] = {}  # of ended ones too: a driver names them for a while
        try:
            self._has_their_pids = (
                str((self._proc / "self/ns/pid").readlink()) == _INITIAL_NAMESPACE
            )
        except OSError:
            self._has_their_pids = False

    def tell_own(self, pids: Iterable[int]) -> dict[int, bool] | None:
        """Return PID → whether it is the job's; None when one of them cannot be named."""
        if not self._has_their_pids:
            return None
        found = {}
        for pid in pids:
            is_own = self._owns(pid) if self._read_name(pid) is not None else self._seen.get(pid)
            if is_own is None:
                return None
            found[pid] = self._seen[pid] = is_own
        return found

    def find_own_share(self, work: Mapping[int, float]) -> float | None:
        """Return the job's part of the work of processes; None where it is unknown, or none."""
        whose, total = self.tell_own(work), sum(work.values())
        if whose is None or not total:
            return None
        return sum(done for pid, done in work.items() if whose[pid]) / total

    def sum_others(self, amounts: Mapping[int, float | None]) -> float | None:
        """Return what processes have that are not the job's; None where a part is unknown."""
        whose = self.tell_own(amounts)
        if whose is None:
            return None
        taken = [amounts[pid] for pid, is_own in whose.items() if not is_own]
        known = [amount for amount in taken if amount is not None]
        return float(sum(known)) if len(known) == len(taken) else None

    def has_server(self, pids: Iterable[int]) -> bool:
        """Return whether an MPS server is among processes: it computes for clients of any job."""
        return any(self._read_name(pid) == _MPS_SERVER for pid in pids)

    def _read_name(self, pid: int) -> str | None:
        return read_text(self._proc / str(pid) / "comm")
