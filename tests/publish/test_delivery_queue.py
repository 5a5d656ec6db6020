"""The queue of reports: each is sent or kept within its time, and one line says which."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlflow_perf.core.threads import Event
from mlflow_perf.core.workspaces import read_workspace
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.publish import delivery_queue, dispatch
from mlflow_perf.publish.delivery_queue import DeliveryQueue, LateJournal, Sending
from mlflow_perf.publish.journal import Journal
from mlflow_perf.publish.journal_facts import JournalFacts
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.run_handle import RunHandle


class _Store:
    """A store that hangs until it is released, and fails then."""

    def __init__(self) -> None:
        self.asked, self.released = Event(), Event()

    def write(self, *_: object, **__: object) -> None:
        """Take the place of `write_node`."""
        self.asked.set()
        self.released.wait(30)
        raise ConnectionError("it was away")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Store]:
    """Let every report go to a store that hangs."""
    store = _Store()
    monkeypatch.setattr(dispatch, "write_node", store.write)
    yield store
    store.released.set()


@pytest.fixture
def make_sending(tmp_path: Path) -> Callable[[], Sending]:
    """Return what makes a report of a job."""

    def make_sending() -> Sending:
        delivery = Delivery(
            NodeDocument(component="train"), RunHandle(str(tmp_path / "mlruns"), run_id="1")
        )
        journal = LateJournal(lambda: Journal(delivery, JournalFacts(), folder=tmp_path))
        return Sending(lambda _: delivery, journal, lambda _: None)

    return make_sending


def _drain(queue: DeliveryQueue, store: _Store, *waiting: Sending) -> None:
    """Let the process exit while the queue sends the first of some reports to a store that hangs.

    Then the store fails, and the queue's thread deals with that.
    """
    for sending in waiting:
        queue.put(sending)
    assert store.asked.wait(30)
    queue.drain(0.0)
    thread = queue._thread
    store.released.set()
    queue.close()
    assert thread is not None
    thread.join(30)


def _list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_one_line_for_a_report_that_the_exit_keeps(
    store: _Store,
    make_sending: Callable[[], Sending],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread that still sends it says nothing when it fails too."""
    _drain(DeliveryQueue(60.0), store, make_sending())
    (line,) = _list_warnings(caplog)
    assert line.startswith("1 performance report was not sent in time, but kept; send with: ")
    assert line.endswith(f"mlflow-perf recover {tmp_path}")
    assert len(list(tmp_path.glob("*.journal"))) == 1


def test_one_line_for_a_report_whose_own_time_is_over(
    store: _Store,
    make_sending: Callable[[], Sending],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that sends it knows the reason, so the exit leaves the line to it."""
    monkeypatch.setattr(delivery_queue, "_SETTLE_SEC", 30.0)
    _drain(DeliveryQueue(0.1), store, make_sending())
    (line,) = _list_warnings(caplog)
    assert line.startswith("The performance report of 'train' was not sent (TimeoutError")
    assert len(list(tmp_path.glob("*.journal"))) == 1


def test_reports_behind_one_that_hangs_are_kept_too(
    store: _Store,
    make_sending: Callable[[], Sending],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line counts them all."""
    waiting = [make_sending() for _ in range(3)]
    _drain(DeliveryQueue(60.0), store, *waiting)
    (line,) = _list_warnings(caplog)
    assert line.startswith("3 performance reports were not sent in time, but kept; ")
    assert len(list(tmp_path.glob("*.journal"))) == 3
    assert all(sending.done.is_set() and not sending.is_sent for sending in waiting)


def test_a_report_that_cannot_be_kept_either_is_not_said_to_be(
    store: _Store, make_sending: Callable[[], Sending], caplog: pytest.LogCaptureFixture
) -> None:
    """No line names a command that would find nothing."""

    def fail() -> Journal:
        raise OSError("no space left")

    lost_one = Sending(lambda _: Delivery(), LateJournal(fail), lambda _: None)
    _drain(DeliveryQueue(60.0), store, make_sending(), lost_one)
    kept, lost = _list_warnings(caplog)
    assert kept.startswith("1 performance report was")
    assert lost == "1 performance report was not sent in time and could not be kept."


def test_what_is_asked_before_a_report_is_sent_counts() -> None:
    """A delivery that takes long to make has the report's own deadline; keeping it asks nothing."""
    asked: list[float] = []

    def make(until: float) -> Delivery:
        asked.append(until)
        raise ValueError("not made")

    def never() -> Journal:
        raise AssertionError

    began = time.monotonic()
    sending = Sending(make, LateJournal(never), lambda _: None)
    sending.send(5.0)
    assert began + 5.0 <= asked[0] <= time.monotonic() + 5.0
    assert asked[0] == sending.until
    assert sending.keep() is False
    assert asked[1] < began


def test_a_brief_report_is_sent_to_the_workspace_of_its_run(
    make_sending: Callable[[], Sending], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on meanwhile, perhaps in another workspace."""
    pytest.importorskip("mlflow.utils.workspace_context")
    monkeypatch.setenv("MLFLOW_WORKSPACE", "late")
    seen: list[str] = []
    monkeypatch.setattr(delivery_queue, "write_node", lambda _: seen.append(read_workspace()))
    sending = make_sending()
    delivery = sending._make(0.0)
    delivery.is_brief, delivery.run.workspace = True, "team-a"
    sending.send(30.0)
    assert sending.is_sent
    assert seen == ["team-a"]
