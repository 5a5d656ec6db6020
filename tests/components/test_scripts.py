"""What the components' scripts compute, without a run."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("lightgbm")

COMPONENTS = Path(__file__).resolve().parents[2] / "components"


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    """The scripts, importable by name as in their snapshots."""
    folders = [str(p) for p in COMPONENTS.iterdir() if p.is_dir()]
    sys.path[:0] = folders
    names = ("arguments", "machines", "generate_data", "score", "perf_report", "train_lightgbm")
    try:
        yield SimpleNamespace(**{name: _fresh(name) for name in names})
    finally:
        del sys.path[: len(folders)]
        for name in names:
            sys.modules.pop(name, None)


def _fresh(name: str) -> ModuleType:
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def test_the_table_is_the_same_for_a_seed(scripts: Any) -> None:
    """A seed makes one table; another seed another; the label is 0 or 1 and no constant."""
    make = scripts.generate_data.make_table
    table = make(500, 4, 7)
    assert table.shape == (500, 5)
    assert np.array_equal(table, make(500, 4, 7))
    assert not np.array_equal(table, make(500, 4, 8))
    assert set(np.unique(table[:, 0])) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("labels", "scores", "area"),
    [
        ([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4], 1.0),
        ([1, 1, 0, 0], [0.1, 0.2, 0.3, 0.4], 0.0),
        ([0, 1, 0, 1], [0.5, 0.5, 0.5, 0.5], 0.5),
        ([0, 1, 0, 1], [0.1, 0.4, 0.35, 0.8], 1.0),
        ([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], 0.75),
    ],
)
def test_the_area_counts_pairs(
    scripts: Any, labels: list[int], scores: list[float], area: float
) -> None:
    """The area under the curve is the share of pairs in the right order; ties count half."""
    assert scripts.score.area_under_curve(np.array(labels), np.array(scores)) == area


def test_one_class_alone_has_no_area(scripts: Any) -> None:
    """Where every label is the same there are no pairs."""
    assert np.isnan(scripts.score.area_under_curve(np.ones(3), np.arange(3)))


def test_ranks_find_each_other_through_a_folder(scripts: Any, tmp_path: Path) -> None:
    """Every rank gets the same addresses, in the order of the ranks, and its own port in them."""
    found: dict[int, tuple[list[str], int]] = {}

    def look(rank: int) -> None:
        found[rank] = scripts.machines.find(rank, 3, folder=tmp_path / "m", port=1)

    threads = [threading.Thread(target=look, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    addresses = found[0][0]
    assert all(found[rank][0] == addresses for rank in range(3))
    assert [int(a.rpartition(":")[2]) for a in addresses] == [found[r][1] for r in range(3)]
    assert all(a.startswith("127.0.0.1:") for a in addresses)


def test_azure_names_the_nodes_itself(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Azure ML the addresses come from its own list, with one port for all."""
    monkeypatch.setenv("AZ_BATCH_NODE_LIST", "10.0.0.4;10.0.0.5")
    found = scripts.machines.find(1, 2, folder=tmp_path, port=12400)
    assert found == (["10.0.0.4:12400", "10.0.0.5:12400"], 12400)


@pytest.mark.parametrize(
    ("nodes", "threads"),
    [("10.0.0.4;10.0.0.5", 8), ("10.0.0.4;10.0.0.4", 4), ("", 8)],
)
def test_ranks_share_the_cpus_of_their_own_machine_only(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str, threads: int
) -> None:
    """Of two machines each trains with all its CPUs; ranks on one machine with their part."""
    monkeypatch.setenv("AZ_BATCH_NODE_LIST", nodes)
    words = "--iterations 1 --leaves 2 --learning-rate 1 --objective binary --port 1"
    paths = ["--parts-data", str(tmp_path), "--model", str(tmp_path)]
    args = scripts.train_lightgbm.arguments().parse_args([*words.split(), *paths])
    node = SimpleNamespace(cpu_count=8, world_size=2 if nodes else 1, rank=0)
    assert scripts.train_lightgbm.parameters(args, node)["num_threads"] == threads


@pytest.mark.parametrize(
    ("known", "environ", "parent"),
    [
        ("p1", {"AZUREML_ROOT_RUN_ID": "root"}, "p1"),
        (None, {"AZUREML_ROOT_RUN_ID": "root"}, "root"),
        (None, {}, "me"),
    ],
)
def test_the_report_finds_its_pipeline(
    scripts: Any,
    monkeypatch: pytest.MonkeyPatch,
    known: str | None,
    environ: dict[str, str],
    parent: str,
) -> None:
    """The parent is what MLflow knows, else Azure's root run, else the run itself."""
    run = SimpleNamespace(parent_id=known)
    monkeypatch.setattr(scripts.perf_report, "get_run", lambda _: run)
    assert scripts.perf_report.find_parent("me", environ) == parent


def test_properties_are_a_json_object(scripts: Any) -> None:
    """Custom properties that are no JSON object are refused by the parser."""
    made = scripts.arguments.parser("x")
    assert made.parse_args(["--custom-properties", '{"a": 1}']).custom_properties == {"a": 1}
    for text in ("[1]", "a=1"):
        with pytest.raises(SystemExit):
            made.parse_args(["--custom-properties", text])
