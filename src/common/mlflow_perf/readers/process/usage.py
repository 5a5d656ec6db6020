"""What processes used, as the kernel counts it."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_perf.records import MB


@dataclass(slots=True)
class Usage:
    """What a process used, including its reaped children.

    Attributes:
        cpu_sec: CPU time.
        system_sec: The part of it that the kernel worked for it.
        read_bytes: Fetched from disks.
        write_bytes: Sent to disks.
        read_calls: System calls that read.
        write_calls: System calls that write.
        called_bytes: What those calls read and wrote, from files in memory and pipes too.
    """

    cpu_sec: float = 0.0
    system_sec: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0
    read_calls: int = 0
    write_calls: int = 0
    called_bytes: int = 0

    def add(self, other: Usage) -> None:
        """Add another usage to this one."""
        self.cpu_sec += other.cpu_sec
        self.system_sec += other.system_sec
        self.read_bytes += other.read_bytes
        self.write_bytes += other.write_bytes
        self.read_calls += other.read_calls
        self.write_calls += other.write_calls
        self.called_bytes += other.called_bytes

    def as_report(self) -> dict[str, float]:
        """Return the columns of a report."""
        return {
            "job_cpu_sec": self.cpu_sec,
            "job_system_sec": self.system_sec,
            "job_io_read_mb": self.read_bytes / MB,
            "job_io_write_mb": self.write_bytes / MB,
            "job_read_calls": float(self.read_calls),
            "job_write_calls": float(self.write_calls),
            "job_calls_mb": self.called_bytes / MB,
        }

    def raise_to(self, now: Usage, *, since: Usage) -> None:
        """Take the growth of each figure since a base, unless the figure would fall."""
        self.cpu_sec = max(self.cpu_sec, now.cpu_sec - since.cpu_sec)
        self.system_sec = max(self.system_sec, now.system_sec - since.system_sec)
        self.read_bytes = max(self.read_bytes, now.read_bytes - since.read_bytes)
        self.write_bytes = max(self.write_bytes, now.write_bytes - since.write_bytes)
        self.read_calls = max(self.read_calls, now.read_calls - since.read_calls)
        self.write_calls = max(self.write_calls, now.write_calls - since.write_calls)
        self.called_bytes = max(self.called_bytes, now.called_bytes - since.called_bytes)
