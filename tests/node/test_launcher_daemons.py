"""What the daemons of launchers tell: from their variables and from a process tree on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlflow_perf.node.launcher_daemons import hydra, open_mpi


def _orte(daemon: int, daemons: int, nodes: int) -> dict[str, str]:
    return {
        "OMPI_MCA_orte_local_daemon_uri": f"190355.{daemon};tcp://192.0.2.2:53517",
        "OMPI_MCA_ess_base_num_procs": str(daemons),
        "OMPI_MCA_orte_num_nodes": str(nodes),
    }


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (_orte(0, 2, 2), (0, 2)),
        (_orte(1, 2, 2), (1, 2)),
        # The host of mpirun runs no rank.
        (_orte(1, 3, 2), (0, 2)),
        (_orte(2, 3, 2), (1, 2)),
        # More idle hosts than that: which of them they are is not told.
        (_orte(3, 5, 2), None),
        ({}, None),
        (_orte(0, 1, 1) | {"OMPI_MCA_orte_num_nodes": "x"}, None),
    ],
)
def test_open_mpi_numbers_its_daemons(
    environ: dict[str, str], place: tuple[int, int] | None
) -> None:
    """The daemon's number is the node's, less that of a host that only ran mpirun."""
    assert open_mpi(environ) == place


def _tree(root: Path, *commands: str) -> Path:
    """Write a chain of processes: this one, its parent, the parent of that."""
    pids = [os.getpid(), *range(100001, 100001 + len(commands)), 1]
    for pid, parent, command in zip(pids, pids[1:], ("python", *commands), strict=False):
        folder = root / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode())
    return root


def _rank(rank: int, size: int, local: int, here: int) -> dict[str, str]:
    return {
        "PMI_RANK": str(rank), "PMI_SIZE": str(size), "MPI_LOCALRANKID": str(local),
        "MPI_LOCALNRANKS": str(here),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("number", "rank", "place"),
    [
        (1, _rank(2, 4, 0, 2), (1, 2)),
        # Dealt in turns.
        (1, _rank(1, 8, 0, 2), (1, 4)),
        # Three and one: the last node knows that it is the last, the first that there are more.
        (1, _rank(3, 4, 0, 1), (1, 2)),
        (0, _rank(0, 4, 0, 3), (0, 2)),
        (0, _rank(0, 4, 0, 4), (0, 1)),
    ],
)
def test_hydras_proxy_is_numbered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    rank: dict[str, str],
    place: tuple[int, int],
) -> None:
    """The nearest ancestor that is a proxy gives the node, even with a shell in between."""
    monkeypatch.setenv("PMI_RANK", rank["PMI_RANK"])
    proc = _tree(
        tmp_path, "bash -c x", f"/opt/bin/hydra_pmi_proxy --retries 10 --proxy-id {number}"
    )
    assert hydra(rank, proc=proc) == place


def test_under_slurm_the_number_is_slurms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm starts all proxies with one command line, in which the number is -1."""
    monkeypatch.setenv("PMI_RANK", "3")
    proc = _tree(tmp_path, "hydra_pmi_proxy --proxy-id -1")
    assert hydra(_rank(3, 4, 1, 2) | {"SLURM_NODEID": "1"}, proc=proc) == (1, 2)
    assert hydra(_rank(3, 4, 1, 2), proc=proc) is None


def test_without_a_proxy_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy above, no process file system, another process's variables: the rank has to do."""
    rank = _rank(3, 4, 1, 2)
    monkeypatch.setenv("PMI_RANK", "3")
    assert hydra(rank, proc=tmp_path / "none") is None
    assert hydra(rank, proc=_tree(tmp_path, "bash", "init")) is None
    monkeypatch.delenv("PMI_RANK")
    assert hydra(rank) is None
