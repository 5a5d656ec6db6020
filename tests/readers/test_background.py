"""A source that may block is asked in a thread of its own, and costs at most a warning."""

from __future__ import annotations

import pytest

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.readers.background import Background


@pytest.mark.parametrize(
    ("error", "traced"),
    [(MissingDependencyError("nvidia-ml-py", "gpu"), False), (OSError("a sick driver"), True)],
)
def test_a_source_that_cannot_be_opened_is_one_warning(caplog, error, traced: bool) -> None:
    """An error of ours says what to do, in one line; of any other the traceback tells more."""

    def fail() -> None:
        raise error

    source = Background(fail, name="perf-test", patience_sec=30.0)
    source._thread.join(30.0)
    assert source.newest() is None
    source.close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert bool(record.exc_info) is traced
    assert ("mlflow-perf[gpu]" in record.getMessage()) is not traced
