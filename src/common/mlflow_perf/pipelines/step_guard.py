"""Writes the logs of a step's processes, and ends them when the runner says so or was killed.

Run as a program of its own by `guard`. A pipe loses nothing to a script that opens `/dev/stderr`
anew, which a file would; and it needs a reader for as long as anybody may write to it.

Standard input has the process groups, one a line, and "end" once the step has ended; without that
line, all that it has started is to end.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

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
        """Copy until standard input ends, and return the groups that are to be ended then."""
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


_Key = tuple[int, bytes]


class _Process:
    """A process that has not ended.

    Args:
        pid: Its number.
        parent: Number of its parent.
        group: Number of its process group.
        begun: When it began: another process may have its number later.
    """

    def __init__(self, pid: int, parent: int, group: int, begun: bytes) -> None:
        self.pid, self.parent, self.group, self.key = pid, parent, group, (pid, begun)


def _list_processes() -> list[_Process]:
    """List all that run on this machine, without those that only wait to be reaped."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib takes long to import
        try:
            with open(f"/proc/{int(name)}/stat", "rb") as file:  # noqa: PTH123 - see above
                state, parent, group, *fields = file.read().rpartition(b")")[2].split()
        except (OSError, ValueError):  # it has ended by now, or is no process
            continue
        if state != b"Z":
            found.append(_Process(int(name), int(parent), int(group), fields[16]))
    return found


def _read_words(process: _Process, name: str) -> list[bytes]:
    """Return the parts of a file of a process, such as its arguments; none if it has ended."""
    try:
        with open(f"/proc/{process.pid}/{name}", "rb") as file:  # noqa: PTH123 - see above
            return file.read().split(b"\0")
    except OSError:  # or is somebody else's
        return []


def _has_ended(groups: list[int]) -> bool:
    return not any(one.group in groups for one in _list_processes())


def _send(kill: Callable[[int, int], None], to: int, number: int) -> None:
    """Send a signal to a process or group that may have ended by now."""
    with suppress(OSError):
        kill(to, number)


class _Outside:
    """What a step has started outside its process groups: in a session of its own, as a daemon.

    Args:
        groups: The process groups.
        mark: The variable that only the step's processes have; empty for none.
    """

    def __init__(self, groups: list[int], mark: str) -> None:
        self._groups, self._mark = groups, os.fsencode(mark)
        # The guard of a pipeline that the step ran ends by itself what that one's steps started.
        self._own = os.fsencode(sys.argv[0])
        self._known: set[_Key] = set()
        # What one of these starts at its end, to save what it has, is not told to end.
        self._untold = {one.key for one in self.list_left()}

    def list_left(self) -> list[_Process]:
        """List what has not ended."""
        running = {one.pid: one for one in _list_processes()}
        for one in running.values():
            if one.key not in self._known and self._is_outside(one, running):
                self._known.add(one.key)
        return [one for one in running.values() if one.key in self._known]

    def tell(self) -> None:
        """Send SIGTERM once to each that no other process of the step leads.

        What a launcher has started, in sessions of their own perhaps, that ends itself.
        """
        running = {one.pid: one for one in _list_processes()}
        untold = [one for one in running.values() if one.key in self._untold]
        for one in untold:
            if not self._is_led(one, running):
                self._untold.discard(one.key)
                _send(os.kill, one.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to each but those that still have to be told."""
        for one in self.list_left():
            if one.key not in self._untold:
                _send(os.kill, one.pid, signal.SIGKILL)

    def _is_outside(self, process: _Process, running: dict[int, _Process]) -> bool:
        if process.group in self._groups:
            return False
        # A daemon has another parent, but it has the variable.
        has_mark = bool(self._mark) and self._mark in _read_words(process, "environ")
        is_step = has_mark or self._is_led(process, running)
        return is_step and self._own not in _read_words(process, "cmdline")

    def _is_led(self, process: _Process, running: dict[int, _Process]) -> bool:
        """Return whether a process of the step is above it, which is not of its own group."""
        parent = running.get(process.parent)
        while parent is not None:
            is_step = parent.group in self._groups or parent.key in self._known
            if is_step and parent.group != process.group:
                return True
            parent = running.get(parent.parent)
        return False


def _end(groups: list[int], guard: _Guard, grace_sec: float, mark: str) -> None:
    """End the groups and what they started: by SIGTERM, after a grace by SIGKILL."""
    outside = _Outside(groups, mark)

    def is_over() -> bool:
        outside.tell()
        return _has_ended(groups) and not outside.list_left()

    outside.tell()
    for group in groups:
        _send(os.killpg, group, signal.SIGTERM)
    guard.copy_until(is_over, time.monotonic() + grace_sec)
    for group in groups:
        _send(os.killpg, group, signal.SIGKILL)
    # What these have led gets its SIGTERM now, and then the same time.
    for _ in range(2):
        outside.kill()
        guard.copy_until(is_over, time.monotonic() + grace_sec)


def main() -> None:
    """Copy until standard input ends; then end all that the step has started, if it is to end."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    grace_sec, mark, *logs = sys.argv[1:]
    guard = _Guard(logs)
    if groups := guard.wait_for_end():
        _end(groups, guard, float(grace_sec), mark)
    guard.complete()
    # The runner waits for the end of this process. What the step has left running, such as a
    # server, may write as long as it runs.
    if guard.has_pipes() and os.fork() == 0:
        while guard.has_pipes():
            guard.copy()


if __name__ == "__main__":
    main()
