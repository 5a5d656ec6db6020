"""JSON of a recording's files is the job's mocks' no business, nor they ours."""

from __future__ import annotations

import json
import math
from unittest.mock import patch

import pytest

from mlflow_perf.core.plain_json import dumps, loads


def test_mocks_of_the_job_are_not_called() -> None:
    """Modules of ours are imported when they are needed, perhaps while a mock is there."""
    with patch("json.dumps") as dump, patch("json.loads") as load:
        assert loads(dumps({"a": [1, 2.5, None]})) == {"a": [1, 2.5, None]}
        assert loads(b'{"\xc3\xa9": 1}') == {"é": 1}
    assert dump.call_count == load.call_count == 0


def test_it_is_strict() -> None:
    """What other programs cannot read is not written; what is no JSON is an error."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(math.nan)
    with pytest.raises(json.JSONDecodeError):
        loads("{")
    with pytest.raises(ValueError, match="decode"):
        loads(b"\xff")
