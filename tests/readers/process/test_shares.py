"""Shares of a process's memory, as the kernel writes them."""

from __future__ import annotations

from mlflow_perf.readers.process.shares import Shares

ROLLUP = """\
564e024e4000-7ffc16e7d000 ---p 00000000 00:00 0                          [rollup]
Rss:                1764 kB
Pss:                 233 kB
Pss_Anon:            112 kB
Shared_Clean:       1612 kB
Shared_Dirty:          0 kB
Private_Clean:        40 kB
Private_Dirty:       112 kB
Anonymous:           110 kB
SwapPss:               7 kB
"""


def test_shares_are_read_from_the_kernels_summary() -> None:
    """Clean and dirty private pages are one figure; similar names are others."""
    assert Shares.parse(ROLLUP) == Shares(233 * 1024, 152 * 1024, 110 * 1024, 121 * 1024)
    undivided = ROLLUP.replace("Pss_Anon:            112 kB\n", "")
    assert Shares.parse(undivided) == Shares(233 * 1024, 152 * 1024, 110 * 1024)


def test_an_ended_process_has_no_shares() -> None:
    """The kernel writes nothing for an ended process."""
    assert Shares.parse("") is None
