"""What children of this process used that have ended. Imports nothing of ours.

The kernel keeps the account of an ended child until its parent waits for it, and adds it to the
parent's own account of children then. Both are exact: CPU time to the microsecond, peaks of memory.
"""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass

__all__ = ["EndedChild", "ended_child", "reaped_peak_bytes", "reaped_sec"]

_KB = 1024
# The C library's waitid has no place for the account, the system call behind it has.
_WAITID = {
    "x86_64": 247, "aarch64": 95, "riscv64": 95, "loongarch64": 95, "ppc64le": 272, "s390x": 281,
}  # fmt: skip
_OF_ONE_PID = 1
_LOOK_ONLY = getattr(os, "WEXITED", 0) | getattr(os, "WNOHANG", 0) | getattr(os, "WNOWAIT", 0)


class _Account(ctypes.Structure):
    """The kernel's `struct rusage` on machines of 64 bits."""

    _fields_ = (
        ("user_sec", ctypes.c_long),
        ("user_usec", ctypes.c_long),
        ("system_sec", ctypes.c_long),
        ("system_usec", ctypes.c_long),
        ("peak_kb", ctypes.c_long),
        ("others", ctypes.c_long * 13),
    )


@dataclass(frozen=True, slots=True)
class EndedChild:
    """The account of a child that ended and was not waited for yet, its own children included.

    Attributes:
        cpu_sec: CPU time.
        peak_bytes: Most memory that any one of them had. The kernel counts what the child shared
            with this process before it became another program, too.
    """

    cpu_sec: float
    peak_bytes: int


def ended_child(pid: int) -> EndedChild | None:
    """Return the account of an ended child and leave it to be waited for.

    Args:
        pid: A process.

    Returns:
        None while it runs, when it is no child of this process, or where the kernel does not tell.
    """
    number = _WAITID.get(platform.machine())
    if number is None or not hasattr(os, "waitid") or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    info, account = ctypes.create_string_buffer(128), _Account()
    # This keeps the GIL: the kernel answers at once.
    libc = ctypes.PyDLL(None)
    failed = libc.syscall(
        number, _OF_ONE_PID, pid, ctypes.byref(info), _LOOK_ONLY, ctypes.byref(account)
    )
    if failed or not any(info.raw[:4]):  # nothing has happened to it yet
        return None
    seconds = account.user_sec + account.system_sec
    return EndedChild(
        seconds + (account.user_usec + account.system_usec) / 1e6, account.peak_kb * _KB
    )


def reaped_sec() -> float:
    """Return the CPU time of all ended children of this process, to the microsecond."""
    # Imported here, as Windows has no such module.
    from resource import RUSAGE_CHILDREN, getrusage

    children = getrusage(RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def reaped_peak_bytes() -> int:
    """Return the peak memory of the largest ended child of this process.

    The kernel counts what a child shared with this process before it became another program, so a
    figure below this process's own peak may be that.
    """
    from resource import RUSAGE_CHILDREN, getrusage

    return getrusage(RUSAGE_CHILDREN).ru_maxrss * _KB
