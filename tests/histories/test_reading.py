"""The kinds of files that are recognised."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.errors import SettingError
from mlflow_perf.histories.reading import read_histories

HEADER = "task_id\thash\tname\tstatus\tsubmit\trealtime\tpeak_rss\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "line 1: is no heading line of a Nextflow trace"),
        (HEADER, "No task that ended"),
        (f"{HEADER}1\tx\tA\tCOMPLETED\t-\tsoon\t5\n", "line 2: realtime is 'soon'"),
        (f"{HEADER}1\tx\tA\tCOMPLETED\t-\t1s\t5\n2\tx", "line 3: 2 cells"),
        ("\x00\x01", "line 1"),
    ],
)
def test_bad_input_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    """One sentence says which line of which file, and what is expected."""
    path = tmp_path / "trace.txt"
    path.write_text(text)
    with pytest.raises(SettingError, match=message):
        read_histories([path])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The same for one that is not there, and for a folder with nothing in it."""
    with pytest.raises(SettingError, match=r"no\.txt cannot be read: No such file"):
        read_histories([tmp_path / "no.txt"])
    with pytest.raises(SettingError, match="holds no file"):
        read_histories([tmp_path])
