"""Divides the node's CPUs and memory into those of the job, of others, and idle ones."""

from __future__ import annotations


class NodeSplit:
    """Adds the node's resources that others used, and those that were idle, to each report."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def add_to(self, report: dict[str, float]) -> None:
        """Add the columns `others_…` and `idle_…` whose sources the report has."""
        self._add_cpu(report)
        host, used_pct = report.get("host_mem_mb"), report.get("mem_percent")
        job = report.get("job_mem_mb")
        if host is not None and used_pct is not None and job is not None:
            used = host * used_pct / 100.0
            report["others_mem_mb"] = max(0.0, used - job)
            # The job's memory may hold pages of files, which the kernel calls available.
            report["idle_mem_mb"] = max(0.0, host - max(used, job))

    def _add_cpu(self, report: dict[str, float]) -> None:
        # The columns of the whole node are there only if the job does not own all of it.
        head = "host_" if "host_cpu_busy_sec" in report else ""
        busy, ticks = report.get(f"{head}cpu_busy_sec"), report.get(f"{head}cpu_ticks_sec")
        cores = report.get("host_cpu_cores" if head else "cpu_limit_cores")
        if busy is None or ticks is None or cores is None:
            return
        before, self._before = self._before, (busy, ticks)
        job = report.get("job_cpu_cores")
        if before is None or job is None or ticks <= before[1]:
            return
        in_use = cores * min(1.0, (busy - before[0]) / (ticks - before[1]))
        report["others_cpu_cores"] = max(0.0, in_use - job)
        report["idle_cpu_cores"] = max(0.0, cores - max(in_use, job))
