"""Ends the processes of a step when its runner was killed; run as a program of its own.

Standard input has the process groups, one a line, and ends when the runner does. `processes` ends
this program itself, once the step has ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_POLL_SEC = 0.1


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
    """Wait for the end of the runner, and end all groups as it would."""
    groups = [int(line) for line in sys.stdin]
    grace_sec = float(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGKILL):
        groups = _send(groups, number)
        end = time.monotonic() + grace_sec
        while groups and time.monotonic() < end:
            time.sleep(_POLL_SEC)
            groups = _send(groups, 0)


if __name__ == "__main__":
    main()
