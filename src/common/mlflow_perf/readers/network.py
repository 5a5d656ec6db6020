"""Bytes over the loopback and over the other interfaces. Imports procfile and the column table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import NETWORK_COLUMNS
from mlflow_perf.readers.procfile import ProcFile
from mlflow_perf.records import MB, Column

__all__ = ["NetworkReader"]

# Name, then bytes received and seven more counters, then bytes sent.
_COUNTERS = re.compile(rb"\n *([^\s:]+):\s*(\d+)(?: +\d+){7} +(\d+)")


class NetworkReader:
    """Bytes sent and received since boot, loopback and external apart.

    Where the machine has network hardware, only that counts as external: what a container sends
    passes a veth pair, a bridge and the card, and would count three times. Inside a container,
    where no interface has hardware of its own, every interface but the loopback counts.

    Args:
        proc: Where procfs is mounted.
        sys: Where sysfs is mounted.

    Raises:
        SourceUnavailableError: When there is no `net/dev` in procfs.
    """

    name = "network"
    columns: Sequence[Column] = NETWORK_COLUMNS

    def __init__(self, proc: Path | str = "/proc", *, sys: Path | str = "/sys") -> None:
        self._file = ProcFile(Path(proc) / "net" / "dev")
        self._net = Path(sys) / "class" / "net"
        self._kind: dict[bytes, int | None] = {}
        self._sum = [0, 0, 0, 0]  # lo sent, lo received, ext sent, ext received
        self._before: dict[bytes, tuple[int, int]] = {}
        names = [name for name, _, _ in _COUNTERS.findall(self._file.read())]
        if not names:
            raise SourceUnavailableError(f"{self._file.path} names no interface.")
        self._hardware_only = any(self._has_hardware(name) for name in names)
        self._count_up()
        self._sum = [0, 0, 0, 0]

    def _has_hardware(self, name: bytes) -> bool:
        return (self._net / name.decode(errors="replace") / "device").exists()

    def _where(self, name: bytes) -> int | None:
        """Return where an interface counts: 0 loopback, 2 external, None nowhere."""
        if name == b"lo":
            return 0
        return 2 if not self._hardware_only or self._has_hardware(name) else None

    def _count_up(self) -> None:
        before, total, kinds = self._before, self._sum, self._kind
        for name, received_text, sent_text in _COUNTERS.findall(self._file.read()):
            if name not in kinds:
                kinds[name] = self._where(name)
            if (at := kinds[name]) is None:
                continue
            received, sent = int(received_text), int(sent_text)
            # An interface that was not there before starts at what it shows now.
            old_sent, old_received = before.get(name, (sent, received))
            # Going back means that the interface was made anew: what it shows is all new.
            total[at] += sent - old_sent if sent >= old_sent else sent
            total[at + 1] += received - old_received if received >= old_received else received
            before[name] = (sent, received)

    def read(self, report: dict[str, float]) -> None:
        """Put the megabytes moved since this reader was made into the report."""
        self._count_up()
        lo_sent, lo_received, ext_sent, ext_received = self._sum
        report["net_io_lo_sent_mb"] = lo_sent / MB
        report["net_io_lo_recv_mb"] = lo_received / MB
        report["net_io_ext_sent_mb"] = ext_sent / MB
        report["net_io_ext_recv_mb"] = ext_received / MB

    def close(self) -> None:
        """Close `net/dev`."""
        self._file.close()
