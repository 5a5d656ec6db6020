"""A job behaves the same with mlflow-perf as without it, whatever it does."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.harm.harness import Zygote, differences, run_job

JOBS = Path(__file__).parent / "jobs"
_MARKS = ("fresh", "whole", "sqlite", "more", "report")


@dataclass(frozen=True)
class Job:
    """One job of the tables in `jobs/`.

    Attributes:
        name: What it does.
        code: Its Python code.
        needs: The package that it imports, if it is optional.
        fresh: Whether it needs an interpreter of its own.
        whole: Whether it frees everything at its end, as an interpreter does.
        sqlite: Whether its tracking store is a database file instead of a server.
        more: Whether it runs only by hand, because others like it run always.
        report: Whether it makes no sense with `HARM_AUTOLOG`, because MLflow's own calls fail then.
    """

    name: str
    code: str
    needs: str | None
    fresh: bool
    whole: bool
    sqlite: bool
    more: bool
    report: bool


def read_jobs(path: Path) -> list[Job]:
    """Return the jobs of a file.

    Each begins with `=== name`, and perhaps `[needs PACKAGE]`, `[fresh]`, `[whole]`, `[sqlite]`,
    `[more]` and `[report]`.
    """
    parts = re.split(r"^=== (.+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    jobs = []
    for head, code in zip(parts[1::2], parts[2::2], strict=True):
        needs = re.search(r"\[needs (\w+)\]", head)
        name = re.sub(r" *\[.*", "", head)
        jobs.append(
            Job(
                name,
                code,
                needs[1] if needs else None,
                *(f"[{mark}]" in head for mark in _MARKS),
            )
        )
    return jobs


ALL = [job for path in sorted(JOBS.glob("*.txt")) for job in read_jobs(path)]


@pytest.fixture(scope="module")
def zygotes() -> Iterator[tuple[Zygote, Zygote]]:
    """The processes that jobs are forked from, without and with mlflow-perf."""
    both = Zygote(), Zygote("mlflow_perf.session.report")
    yield both
    for one in both:
        one.close()


@dataclass(frozen=True)
class Stores:
    """Where the jobs' runs go: a real server, and an empty database to copy."""

    server: str
    database: Path


@pytest.fixture(scope="module")
def stores(_server: str, _migrated_store: Path) -> Stores:
    """The two stores."""
    return Stores(_server, _migrated_store)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "job", [pytest.param(job, id=job.name, marks=[pytest.mark.load] * job.more) for job in ALL]
)
def test_the_job_is_unharmed(
    job: Job, tmp_path: Path, zygotes: tuple[Zygote, Zygote], stores: Stores
) -> None:
    """Exit code, output, files and process state are the same with and without mlflow-perf."""
    if job.needs is not None and importlib.util.find_spec(job.needs) is None:
        pytest.skip(f"needs {job.needs}")
    if job.report and "HARM_AUTOLOG" in os.environ:
        pytest.skip("MLflow's own calls fail in this job")
    seen = []
    for measured in (False, True):
        folder = tmp_path / ("measured" if measured else "bare")
        folder.mkdir()
        environ = {"MLFLOW_TRACKING_URI": stores.server, "MLFLOW_PERF_EXIT_TIMEOUT": "20"}
        if job.sqlite:
            shutil.copy(stores.database, folder / "mlflow.db")
            environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        seen.append(
            run_job(
                job.code,
                folder,
                measured=measured,
                zygote=None if job.fresh else zygotes[measured],
                environ=environ,
                whole=job.whole,
            )
        )
    found = differences(*seen)
    assert not found, "\n".join([*found, "--- stderr", *seen[1].stderr[-30:]])


def test_there_are_many_jobs() -> None:
    """The suite holds at least 150 jobs, each with a name of its own."""
    assert len({job.name for job in ALL}) == len(ALL) >= 150
