"""Bytes over the loopback and over the other network interfaces."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import NETWORK_COLUMNS
from mlflow_perf.readers.procfile import ProcFile
from mlflow_perf.records import MB, Column

# Name, then bytes received and seven more counters, then bytes sent.
_COUNTERS = re.compile(rb"\n *([^\s:]+):\s*(\d+)(?: +\d+){7} +(\d+)")


class NetworkReader:
    """Bytes sent and received since this reader was made, loopback and external apart.

    Where the machine has network hardware, only that counts as external: a container's bytes pass
    a veth pair, a bridge and the card, and would count three times. Inside a container no interface
    has hardware of its own, so every interface but the loopback counts.

    Args:
        proc: Where procfs is mounted.
        sys: Where sysfs is mounted.

    Raises:
        SourceUnavailableError: When there is no `net/dev` in procfs.
    """

    name = "network"
    columns: Sequence[Column] = NETWORK_COLUMNS

    def __init__(self, proc: Path | str = "/proc", *, sys: Path | str = "/sys") -> None:
        self._file = ProcFile(f"{proc}/net/dev")
        self._net = f"{sys}/class/net"
        self._places: dict[bytes, int | None] = {}  # in `_sum`; None where it does not count
        self._sum = [0, 0, 0, 0]  # lo sent, lo received, ext sent, ext received
        self._before: dict[bytes, tuple[int, int]] = {}
        names = [name for name, _, _ in _COUNTERS.findall(self._file.read())]
        if not names:
            raise SourceUnavailableError(f"{self._file.path} names no interface.")
        self._hardware_only = any(self._has_hardware(name) for name in names)
        self.read({})

    def _has_hardware(self, name: bytes) -> bool:
        device = f"{self._net}/{name.decode(errors='replace')}/device"
        return os.path.exists(device)  # noqa: PTH110 - a third of the cost, for each interface

    def read(self, report: dict[str, float]) -> None:
        """Put the megabytes moved since this reader was made into the report."""
        before, total, places = self._before, self._sum, self._places
        for name, received_text, sent_text in _COUNTERS.findall(self._file.read()):
            if name not in places:
                counts = not self._hardware_only or self._has_hardware(name)
                places[name] = 0 if name == b"lo" else 2 if counts else None
            if (at := places[name]) is None:
                continue
            received, sent = int(received_text), int(sent_text)
            # A new interface starts at its present count.
            old_sent, old_received = before.get(name, (sent, received))
            # A count that fell is that of a recreated interface: all of it is new.
            total[at] += sent - old_sent if sent >= old_sent else sent
            total[at + 1] += received - old_received if received >= old_received else received
            before[name] = (sent, received)
        report["net_io_lo_sent_mb"] = total[0] / MB
        report["net_io_lo_recv_mb"] = total[1] / MB
        report["net_io_ext_sent_mb"] = total[2] / MB
        report["net_io_ext_recv_mb"] = total[3] / MB

    def close(self) -> None:
        """Close `net/dev`."""
        self._file.close()
