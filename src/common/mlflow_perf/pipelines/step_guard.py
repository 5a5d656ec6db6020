"""Writes the logs of a step's processes, and ends them when its runner was killed.

Run as a program of its own by `guard`. A pipe loses nothing to a script that opens `/dev/stderr`
anew, which a file would; and it needs a reader for as long as anybody may write to it.

Standard input has the process groups, one a line, and "end" once the step has ended; without that
line, the runner was killed.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time

_POLL_SEC = 0.1
_READ_BYTES = 65_536
_PIPE_READS = 32  # more than a pipe can hold
# Whoever ends a job may send these to all of its processes, and a step's last words are to come.
_IGNORED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


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

    def _write(self, data: bytes) -> None:
        """Write it, or remember what was lost: on a full disk the process goes on."""
        try:
            if self._lost:
                told = f"\n[mlflow-perf: {self._lost} bytes of this log could not be written]\n"
                self._lost -= self._lost if os.write(self._target, told.encode()) else 0
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
        for pair in logs:
            source, target = map(int, pair.split(":"))
            self._selector.register(source, selectors.EVENT_READ, Log(source, target))
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

    def has_pipes(self) -> bool:
        """Return whether anybody may still write to one."""
        return bool(self._selector.get_map())


def _send(groups: list[int], number: int) -> list[int]:
    """Send a signal to all groups, and return those that still have processes."""
    left = []
    for group in groups:
        try:
            os.killpg(group, number)
        except OSError:  # it has ended
            continue
        left.append(group)
    return left


def main() -> None:
    """Copy until the step has ended or its runner is gone; then end all groups as it would."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    grace_sec, guard = float(sys.argv[1]), _Guard(sys.argv[2:])
    groups = guard.wait_for_end()
    for number in (signal.SIGTERM, signal.SIGKILL):
        groups = _send(groups, number)
        end = time.monotonic() + grace_sec
        while groups and time.monotonic() < end:
            guard.copy(_POLL_SEC)
            groups = _send(groups, 0)
    for _ in range(_PIPE_READS):
        if not guard.copy(0):
            break
    # The runner waits for the end of this process. What the step has left running, such as a
    # server, may write as long as it runs.
    if guard.has_pipes() and os.fork() == 0:
        while guard.has_pipes():
            guard.copy()


if __name__ == "__main__":
    main()
