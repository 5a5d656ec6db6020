"""What a job and its node did over a span of time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlflow_perf.analysis.usage import ramp


@dataclass(frozen=True)
class Span:
    """What a job and its node did over a span of time; shares are between 0 and 1.

    Attributes:
        start_sec: Begin, from the job's start.
        seconds: Length.
        cores: CPUs that the job may use, by the limits of its own processes too.
        used: CPUs that the job kept busy.
        node_used: CPUs that all processes of the node kept busy.
        own: Whether `used` counts the job alone.
        run_delay: Of the time in which the job's threads were runnable, the share in which they
            waited for a CPU; None if unknown.
        takes_turns: How far the job's threads are known to take turns, as Python's do under its
            lock: 1.0 if they give up their CPU hundreds of times a second.
        peak_used: The most CPUs that the job kept busy in any interval of the whole run.
        processes: Processes of the job.
        cpu_stall: Share of the time in which some task of the node waited for a CPU.
        io_stall: The same for a disk.
        mem_stall: The same for memory.
        throttled: Share of the time in which the quota held the job back.
        stolen: Share of its CPU time that the host took for other machines.
        most_busy: CPUs that its threads can have kept busy together.
        disk_mb_s: What the job read from and wrote to disks; the node if `own_io` is false.
        mean_disk_mb_s: The same until this span's end, per second of the whole run: writes reach a
            disk in bursts, and a job waits for what it has written, not for what it will write.
        own_io: Whether `disk_mb_s` counts the job alone.
        blocked: The part of its waits for disks that looks at its threads leave possible.
        calls_per_sec: System calls of the job that read or write; 0.0 if unknown.
        calls_mb_s: What they read and wrote, from files in memory and pipes too; None if unknown.
        system: CPUs that the kernel kept busy for the job; None if unknown.
        net_mb_s: What the node moved over the network.
        gpu: How busy the job kept its GPUs.
        mean_gpu: The same over the whole run: it waits for a GPU while it seems not to use it.
        gpu_others: How busy others kept the job's GPUs.
        has_gpu: Whether the job has GPUs.
        mem_pct: Peak memory of the job in per cent of its limit, over the whole run.
        own_mem: Whether `mem_pct` counts the job alone.
        at_own_quota: Whether the job used up a quota that it gave to its own processes.
    """

    start_sec: float
    seconds: float
    cores: float
    used: float
    node_used: float
    own: bool
    run_delay: float | None
    peak_used: float
    processes: float = 0.0
    cpu_stall: float = 0.0
    io_stall: float = 0.0
    mem_stall: float = 0.0
    throttled: float = 0.0
    stolen: float = 0.0
    most_busy: float = math.inf
    disk_mb_s: float = 0.0
    mean_disk_mb_s: float = 0.0
    own_io: bool = False
    blocked: float = 1.0
    calls_per_sec: float = 0.0
    calls_mb_s: float | None = None
    system: float | None = None
    takes_turns: float = 0.0
    net_mb_s: float = 0.0
    gpu: float = 0.0
    mean_gpu: float = 0.0
    gpu_others: float = 0.0
    has_gpu: bool = False
    mem_pct: float = 0.0
    own_mem: bool = False
    at_own_quota: bool = False

    @property
    def demand(self) -> float:
        """CPUs that the job would have used with the whole node to itself, at most one per thread.

        It counts the threads that ran or waited for a CPU. Where no reader counted the waiting, it
        is estimated from the node's stalls and from how busy others kept the CPUs.
        """
        used = self.used / (1.0 - min(self.stolen, 0.95))
        used = max(self.used, min(used, self.most_busy))
        if self.run_delay is not None:
            # The host's part comes on top: a thread that it stops is no longer in a queue of ours.
            demand = self.used / (1.0 - min(self.run_delay, 0.99)) + (used - self.used)
            # Threads that take turns are runnable together for moments, but run one at a time.
            single = max(used, min(demand, 1.0))
            return demand + (single - demand) * self.takes_turns
        felt = ramp(used, 0.05, 0.5)
        if self.peak_used < 1.3 and self.processes < 3:
            return used + min(max(0.0, 1.0 - used), self.cpu_stall) * felt
        others = max(0.0, self.node_used - self.used)
        missed = min(others, max(0.0, self.cores - used)) * self.cpu_stall * felt
        crowd = ramp(self.processes / max(self.cores, 1.0), 1.5, 3.0) * ramp(self.cpu_stall, 0.7, 1)
        is_full = ramp(self.node_used / max(self.cores, 1e-9), 0.8, 0.95)
        return max(used + missed, crowd * is_full * felt * 2 * self.cores)

    @property
    def small_requests(self) -> float:
        """How much of the computing is the kernel's work on many small files, from 0 to 1.

        Programs that compute on what they read in small parts do most of their work themselves.
        """
        if not self.own_io or not self.calls_per_sec:
            return 0.0
        called_mb_s = self.disk_mb_s if self.calls_mb_s is None else self.calls_mb_s
        is_small = 1.0 - ramp(called_mb_s * 1024 / self.calls_per_sec, 16, 64)
        by_kernel = 1.0
        if self.system is not None:
            by_kernel = ramp(self.system / max(self.used, 1e-9), 0.25, 0.5)
        many = ramp(self.calls_per_sec, 1500, 4000) * ramp(self.disk_mb_s, 0.5, 4)
        return is_small * by_kernel * many
