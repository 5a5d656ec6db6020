"""Writes the logs of a step's processes, and ends them when its runner was killed.

Run as a program of its own by `guard`. A pipe loses nothing to a script that opens `/dev/stderr`
anew, which a file would; and it needs a reader for as long as anybody may write to it.

Standard input has the process groups, one a line, and "end" once the step has ended; without that
line, the runner was killed.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable

_POLL_SEC = 0.1
_READ_BYTES = 65_536
_PIPE_READS = 32  # more than a pipe can hold
# Whoever ends a job may send these to all of its processes, and a step's last words are to come.
_IGNORED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def _describe_loss(lost: int) -> bytes:
    return f"\n[mlflow-perf: {lost} bytes of this log could not be written]\n".encode()


class Log:
    """The log of a process.

    Args:
        source: Descriptor of the pipe that the process writes to.
        target: Descriptor of the file.
    """

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target, self._lost = source, target, 0

    def copy(self) -> bool:
        """Copy what is in the pipe, and return whether anybody may still write to it."""
        data = os.read(self._source, _READ_BYTES)
        self._write(data)
        return bool(data)

    def mark_loss(self) -> None:
        """Tell at the end what was lost, on a disk that is still full over the last of the log."""
        self._write(b"")
        told = _describe_loss(self._lost)
        for _ in range(2):  # its own number may make it longer
            told = _describe_loss(self._lost + len(told))
        size = os.fstat(self._target).st_size
        if not self._lost or size < len(told):
            return
        try:
            fcntl.fcntl(self._target, fcntl.F_SETFL, 0)  # else Linux appends it all the same
            os.pwrite(self._target, told, size - len(told))
        except OSError:
            pass

    def _write(self, data: bytes) -> None:
        """Write it, or remember what was lost: on a full disk the process goes on."""
        try:
            told = _describe_loss(self._lost)
            if self._lost and os.write(self._target, told) == len(told):
                self._lost = 0
            while data:
                data = data[os.write(self._target, data) :]
        except OSError:
            self._lost += len(data)


class _Guard:
    """What it reads from: standard input until that ends, and the pipes.

    Args:
        logs: Descriptors of a pipe and its file, as `3:4`.
    """

    def __init__(self, logs: list[str]) -> None:
        self._selector = selectors.DefaultSelector()
        self._logs = {int(one): Log(int(one), int(to)) for one, to in (p.split(":") for p in logs)}
        for source, log in self._logs.items():
            self._selector.register(source, selectors.EVENT_READ, log)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        self._told = b""

    def wait_for_end(self) -> list[int]:
        """Copy until the step has ended, or its runner is gone; return the groups left to end."""
        while sys.stdin.fileno() in self._selector.get_map():
            self.copy()
        told = self._told.decode().split()
        return [] if "end" in told else [int(group) for group in told]

    def copy(self, timeout_sec: float | None = None) -> bool:
        """Wait for something to read, read it, and return whether there was anything."""
        ready = self._selector.select(timeout_sec)
        for key, _ in ready:
            if key.data is None:
                told = os.read(key.fd, _READ_BYTES)
                self._told += told
                is_open = bool(told)
            else:
                is_open = key.data.copy()
            if not is_open:
                self._selector.unregister(key.fd)
        return bool(ready)

    def copy_until(self, is_over: Callable[[], bool], end: float) -> None:
        """Copy until something is so, or until a time of the monotonic clock."""
        while not is_over() and time.monotonic() < end:
            self.copy(_POLL_SEC)

    def complete(self) -> None:
        """Copy what is in the pipes now, and tell in the logs what is missing."""
        for _ in range(_PIPE_READS):
            if not self.copy(0):
                break
        for log in self._logs.values():
            log.mark_loss()

    def has_pipes(self) -> bool:
        """Return whether anybody may still write to one."""
        return bool(self._selector.get_map())


def _read_process(pid: int) -> tuple[int, int, bytes] | None:
    """Return parent and group of a process, and when it began; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib takes long to import
            state, parent, group, *fields = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state == b"Z" else (int(parent), int(group), fields[16])


def _find_outside(groups: list[int]) -> dict[int, bytes]:
    """Return what the groups' leaders started that is in no such group, and when each began."""
    names = os.listdir("/proc")  # noqa: PTH208 - see above
    found = {int(name): _read_process(int(name)) for name in names if name.isdigit()}
    children: dict[int, list[int]] = {}
    for pid, process in found.items():
        if process is not None:
            children.setdefault(process[0], []).append(pid)
    below, outside = list(groups), dict[int, bytes]()
    for parent in below:  # it grows meanwhile
        below += children.get(parent, [])
        process = found.get(parent)
        if process is not None and process[1] not in groups:
            outside[parent] = process[2]
    return outside


def _list_groups(groups: list[int]) -> list[int]:
    """Return those groups that still have processes."""
    return [group for group in groups if _send(os.killpg, group, 0)]


def _list_alive(processes: dict[int, bytes]) -> list[int]:
    """Return those processes that have not ended; another one may have the number of one by now."""
    read = {pid: _read_process(pid) for pid in processes}
    return [pid for pid, now in read.items() if now is not None and now[2] == processes[pid]]


def _send(kill: Callable[[int, int], None], to: int, number: int) -> bool:
    """Send a signal to a process or group, and return whether it was there."""
    try:
        kill(to, number)
    except OSError:  # it has ended
        return False
    return True


def _end(groups: list[int], guard: _Guard, grace_sec: float) -> None:
    """End the groups and what they started, as the runner would."""
    outside = _find_outside(groups)
    end = time.monotonic() + grace_sec
    for group in groups:
        _send(os.killpg, group, signal.SIGTERM)
    guard.copy_until(lambda: not _list_groups(groups), end)
    # A launcher ends its own; what it left, in a session of its own perhaps, comes after it.
    for pid in _list_alive(outside):
        _send(os.kill, pid, signal.SIGTERM)
    guard.copy_until(lambda: not _list_alive(outside), end)
    for group in groups:
        _send(os.killpg, group, signal.SIGKILL)
    for pid in _list_alive(outside):
        _send(os.kill, pid, signal.SIGKILL)
    guard.copy_until(lambda: not _list_groups(groups), time.monotonic() + grace_sec)


def main() -> None:
    """Copy until the step has ended or its runner is gone; then end all that it started."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    guard = _Guard(sys.argv[2:])
    if groups := guard.wait_for_end():
        _end(groups, guard, float(sys.argv[1]))
    guard.complete()
    # The runner waits for the end of this process. What the step has left running, such as a
    # server, may write as long as it runs.
    if guard.has_pipes() and os.fork() == 0:
        while guard.has_pipes():
            guard.copy()


if __name__ == "__main__":
    main()
