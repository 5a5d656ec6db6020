"""Files of the kernel that stay open and are read again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.readers.procfile import ProcFile


def test_proc_file_reads_whole_and_says_when_it_cannot(tmp_path: Path) -> None:
    """A kept file is read from its beginning each time, whatever its length."""
    path = tmp_path / "f"
    path.write_bytes(b"a" * 100_000)
    file = ProcFile(path)
    assert file.read() == b"a" * 100_000
    path.write_bytes(b"b")
    assert file.read() == b"b"
    file.close()
    file.close()
    with pytest.raises(OSError, match=r"[Bb]ad file"):
        file.read()
