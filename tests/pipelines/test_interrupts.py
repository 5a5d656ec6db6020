"""Signals stop a pipeline, but never in the middle of making its store."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mlflow_perf.pipelines.interrupts import making_store, replace_handler, stopping_by_signal


def test_a_signal_is_handled_differently_for_a_while() -> None:
    """A scheduler's SIGTERM becomes an interrupt in the block; the old handler comes back."""
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(KeyboardInterrupt),
        replace_handler(signal.SIGTERM, signal.default_int_handler),
    ):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_closed_terminal_interrupts_once() -> None:
    """The shell and the kernel tell of it, one after the other; SIGTERM interrupts each time."""
    before = signal.getsignal(signal.SIGHUP)
    with stopping_by_signal():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_hangup_that_is_ignored_stops_nothing() -> None:
    """Under `nohup` the pipeline goes on."""
    with replace_handler(signal.SIGHUP, signal.SIG_IGN), stopping_by_signal():
        signal.raise_signal(signal.SIGHUP)


def test_an_interrupt_waits_until_a_new_store_is_made(tmp_path: Path) -> None:
    """A database that is left half made could not be opened again; one that exists is no reason."""
    file, done = tmp_path / "mlflow.db", []

    def make() -> None:
        with making_store(f"sqlite:///{file}"):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            with closing(sqlite3.connect(file)) as database:
                database.execute("CREATE TABLE IF NOT EXISTS experiments (name)")
                database.execute("INSERT INTO experiments VALUES ('Default')")
                database.commit()
            done.append("made")

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            make()
        assert done == ["made"]
