"""The resource usage of ended children of this process.

The kernel keeps the account of an ended child until its parent waits for it, and then adds it to
the parent's own account of children. Both are exact: CPU time to the microsecond, and the peak of
memory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from dataclasses import dataclass

if sys.platform != "win32":
    from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

_KB = 1024
# The C library's waitid does not return the account; the system call behind it does.
_WAITID = {
    "x86_64": 247, "aarch64": 95, "riscv64": 95, "loongarch64": 95, "ppc64le": 272, "s390x": 281,
}  # fmt: skip
_P_ALL, _P_PID = 0, 1
_LOOK_ONLY = getattr(os, "WEXITED", 0) | getattr(os, "WNOHANG", 0) | getattr(os, "WNOWAIT", 0)
# Called with the GIL held: the kernel answers both questions at once.
_LIBC = ctypes.PyDLL(None, use_errno=True) if hasattr(os, "waitid") else None
# Made once, because each sample asks. Nobody reads what the kernel writes there.
_UNREAD = ctypes.create_string_buffer(128)
_WAIT_ARGUMENTS = (_P_ALL, 0, ctypes.addressof(_UNREAD), _LOOK_ONLY)
if _LIBC is not None:
    _LIBC.waitid.argtypes = (ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_int)


class _Account(ctypes.Structure):
    """The kernel's `struct rusage` on 64-bit machines."""

    _fields_ = (
        ("user_sec", ctypes.c_long),
        ("user_usec", ctypes.c_long),
        ("system_sec", ctypes.c_long),
        ("system_usec", ctypes.c_long),
        ("peak_kb", ctypes.c_long),
        ("others", ctypes.c_long * 11),
        ("voluntary_switches", ctypes.c_long),
        ("involuntary_switches", ctypes.c_long),
    )


@dataclass(frozen=True, slots=True)
class EndedChild:
    """The account of an ended child that has not been waited for, with its own children.

    Attributes:
        cpu_sec: CPU time.
        system_sec: The part of it that the kernel worked for them.
        peak_bytes: The largest peak of memory of any one of them. The kernel includes what the
            child shared with this process before it executed its own program.
        switches: See `read_switches`.
    """

    cpu_sec: float
    system_sec: float
    peak_bytes: int
    switches: tuple[int, int] = (0, 0)


def find_ended_child(pid: int) -> EndedChild | None:
    """Return the account of an ended child, which can still be waited for afterwards.

    Args:
        pid: A process.

    Returns:
        None while it runs, when it is no child of this process, or where the kernel does not say.
    """
    number = _WAITID.get(platform.machine())
    if number is None or _LIBC is None or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    info, account = ctypes.create_string_buffer(128), _Account()
    failed = _LIBC.syscall(
        number, _P_PID, pid, ctypes.byref(info), _LOOK_ONLY, ctypes.byref(account)
    )
    if failed or not any(info.raw[:4]):  # it still runs
        return None
    system_sec = account.system_sec + account.system_usec / 1e6
    return EndedChild(
        account.user_sec + account.user_usec / 1e6 + system_sec,
        system_sec,
        account.peak_kb * _KB,
        (account.voluntary_switches, account.involuntary_switches),
    )


def is_childless() -> bool:
    """Return whether this process surely has no child; nothing is waited for."""
    if _LIBC is None:
        return False
    return _LIBC.waitid(*_WAIT_ARGUMENTS) == -1 and ctypes.get_errno() == errno.ECHILD


def read_reaped_sec() -> float:
    """Return the CPU time of all reaped children of this process, to the microsecond."""
    children = getrusage(RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def read_reaped_and_share() -> tuple[float, float]:
    """Return what `read_reaped_sec` does, and the kernel's share of the CPU time of all.

    All are the reaped children and this process.
    """
    own, children = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
    system_sec = own.ru_stime + children.ru_stime
    used_sec = own.ru_utime + children.ru_utime + system_sec
    return children.ru_utime + children.ru_stime, system_sec / used_sec if used_sec else 0.0


def read_switches(*, own: bool) -> tuple[int, int]:
    """Return how often threads gave up their CPU, and how often it was taken from them.

    Args:
        own: Whether to count the threads of this process, besides those of its reaped children.
    """
    children = getrusage(RUSAGE_CHILDREN)
    if not own:
        return children.ru_nvcsw, children.ru_nivcsw
    this = getrusage(RUSAGE_SELF)
    return this.ru_nvcsw + children.ru_nvcsw, this.ru_nivcsw + children.ru_nivcsw


def read_own_peak() -> int:
    """Return the peak memory of this process in bytes, or the inherited peak if that is higher."""
    return getrusage(RUSAGE_SELF).ru_maxrss * _KB


def read_own_faults() -> int:
    """Return how many pages this process got without a disk, since its start."""
    return getrusage(RUSAGE_SELF).ru_minflt


def read_reaped_peak() -> int:
    """Return the peak memory, in bytes, of the largest reaped child of this process.

    The kernel includes what a child shared with this process before it executed its own program.
    So a peak below this process's own may be memory that was only shared.
    """
    return getrusage(RUSAGE_CHILDREN).ru_maxrss * _KB
