"""The network reader on recorded counters with known answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.readers.trees import (
    netdev,
    put,
    read,
)

from mlflow_perf.readers.network import NetworkReader


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return an empty procfs."""
    return tmp_path / "proc"


MB = 1 << 20


def test_network_tells_loopback_from_the_rest(proc: Path, tmp_path: Path) -> None:
    """Bytes count from when the reader was made, loopback apart."""
    put(proc / "net" / "dev", netdev(lo=(7, 7), eth0=(9, 9)))
    reader = NetworkReader(proc, sys=tmp_path)
    put(proc / "net" / "dev", netdev(lo=(7 + MB, 7 + MB), eth0=(9 + 2 * MB, 9 + 3 * MB)))
    assert read(reader) == {
        "net_io_lo_sent_mb": 1.0,
        "net_io_lo_recv_mb": 1.0,
        "net_io_ext_sent_mb": 2.0,
        "net_io_ext_recv_mb": 3.0,
    }


def test_network_counts_a_containers_bytes_once(proc: Path, tmp_path: Path) -> None:
    """Where there is hardware, the bridge and the veth pair before it do not count again."""
    (tmp_path / "class" / "net" / "eth0" / "device").mkdir(parents=True)
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(0, 0), docker0=(0, 0), veth1=(0, 0)))
    reader = NetworkReader(proc, sys=tmp_path)
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(MB, 0), docker0=(MB, 0), veth1=(MB, 0)))
    assert read(reader)["net_io_ext_sent_mb"] == 1.0


def test_network_interface_that_vanishes_or_resets(proc: Path, tmp_path: Path) -> None:
    """A vanished interface keeps its bytes; a recreated one counts from zero."""
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(5 * MB, 0)))
    reader = NetworkReader(proc, sys=tmp_path)
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(6 * MB, 0)))
    assert read(reader)["net_io_ext_sent_mb"] == 1.0
    put(proc / "net" / "dev", netdev(lo=(0, 0)))
    assert read(reader)["net_io_ext_sent_mb"] == 1.0
    put(proc / "net" / "dev", netdev(lo=(0, 0), eth0=(2 * MB, 0)))
    assert read(reader)["net_io_ext_sent_mb"] == 3.0
