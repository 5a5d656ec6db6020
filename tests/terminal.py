"""A real terminal for a program, with its keys and its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time


class Terminal:
    """A terminal of its own with a program at it.

    Args:
        argv: The program.
        environ: Its environment.
    """

    def __init__(self, argv: list[str], environ: dict[str, str]) -> None:
        self.screen = ""
        self._pid, self._handle = pty.fork()
        if self._pid == 0:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite may run below nohup
            os.execvpe(argv[0], argv, environ)
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))

    def type(self, text: str) -> None:
        """Type at the keyboard."""
        os.write(self._handle, text.encode())

    def read_until(self, pattern: str, seconds: float = 60.0) -> None:
        """Return when the screen shows what matches; fail when it never does."""
        until = time.monotonic() + seconds
        while not re.search(pattern, self.screen):
            assert time.monotonic() < until, self.screen
            if select.select([self._handle], [], [], 0.1)[0]:
                self.screen += os.read(self._handle, 4096).decode()

    def hang_up(self) -> int:
        """Take the terminal away; return the exit code, -n for signal n, once the program ended."""
        os.close(self._handle)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def wait(self) -> int:
        """Read to the end and return the exit code, -n for signal n."""
        try:
            while data := os.read(self._handle, 4096):
                self.screen += data.decode()
        except OSError:  # the program has closed the terminal
            pass
        os.close(self._handle)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
