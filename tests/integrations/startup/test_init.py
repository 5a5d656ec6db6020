"""The folder of the start-up code on the job's PYTHONPATH."""

from __future__ import annotations

import os

from tests.alone import alone
from tests.interrupted import check_each_line

from mlflow_perf.integrations import startup


@alone
def test_the_path_is_as_before_wherever_an_alarm_raises() -> None:
    """Whoever removes itself takes back what it began to add."""
    os.environ["PYTHONPATH"] = "mine"

    def act() -> None:
        startup.add_to_path("one")
        startup.add_to_path("other")
        assert os.environ["PYTHONPATH"] != "mine"
        startup.remove_from_path("one")

    def remove() -> None:
        startup.remove_from_path("one")
        startup.remove_from_path("other")

    assert check_each_line(act, remove) > 10
