"""The components that move data in ways of their own: NIXL between nodes, ProxyStore between steps.

Each script is run as its spec's command says, with the package on the path as its snapshot has it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import mlflow_perf

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(mlflow_perf.__file__).parents[1]
NAMES = ("kv_transfer", "proxy_consume", "proxy_produce")


def _spec(name: str) -> Any:
    return yaml.safe_load((ROOT / "components" / name / "component.yaml").read_text("utf-8"))


def _command(name: str, **values: object) -> list[str]:
    """Return a component's command with its defaults and these values filled in."""
    spec = _spec(name)
    inputs = {key: port.get("default") for key, port in spec["inputs"].items()} | values
    text = re.sub(r"\$\[\[.*?\]\]", "", spec["command"])
    filled = re.sub(r"\$\{\{\w+\.(\w+)\}\}", lambda place: str(inputs[place[1]]), text)
    words = shlex.split(filled)
    return [sys.executable, str(ROOT / "components" / name / words[1]), *words[2:]]


def _run(command: list[str], folder: Path) -> None:
    """Run a component without a run to report to; the tests look at its own output."""
    paths = os.pathsep.join([str(ROOT / "components" / "common"), str(PACKAGE)])
    environ = os.environ | {"PYTHONPATH": paths, "MLFLOW_PERF_DISABLE": "true"}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_command_gives_what_the_script_takes(name: str, tmp_path: Path) -> None:
    """The spec's command and the script's help name the same arguments."""
    if name != "kv_transfer":
        pytest.importorskip("proxystore")
    named = set(re.findall(r"--[a-z-]+", _spec(name)["command"]))
    command = [*_command(name, store="s", proxies="p", result="r")[:2], "--help"]
    paths = os.pathsep.join([str(ROOT / "components" / "common"), str(PACKAGE)])
    told = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    assert set(re.findall(r"^ +(?:-h, )?(--[a-z-]+)", told.stdout, re.MULTILINE)) == {
        "--help", *named,
    }  # fmt: skip


@pytest.mark.e2e
@pytest.mark.parametrize("ranks", [1, 3])
def test_kv_transfer_moves_real_blocks(ranks: int, tmp_path: Path) -> None:
    """Each decode rank fetches every request's blocks and reports its figures; no block is left."""
    if importlib.util.find_spec("nixl") is None:
        pytest.skip("nixl is not installed (pip install 'mlflow-perf[nixl]')")
    command = _command(
        "kv_transfer", requests=20, layers=2, blocks=4, block_kb=16, result=tmp_path / "result"
    )
    if ranks > 1:
        mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
        if mpiexec is None:
            pytest.skip("no mpiexec in this environment (pip install mpich)")
        command = [mpiexec, "-n", str(ranks), *command]
    _run(command, tmp_path)
    names = ["transfers.json"] + [f"transfers-{rank}.json" for rank in range(2, ranks)]
    for name in names:
        figures = json.loads((tmp_path / "result" / name).read_text())
        assert figures["Num successful transfers"] == 20
        assert figures["Avg MB per transfer"] == 0.125
        assert figures["Avg number of descriptors"] == 8
        assert figures["Throughput (MB/s)"] > 0
    if ranks > 1:
        assert sorted(path.name for path in (tmp_path / "result").iterdir()) == sorted(names)


@pytest.mark.e2e
def test_data_passes_through_the_store(tmp_path: Path) -> None:
    """The second step gets small proxies, and finds the data wherever the store lies now."""
    pytest.importorskip("proxystore")
    store, proxies = tmp_path / "store", tmp_path / "proxies"
    _run(_command("proxy_produce", objects=5, object_kb=64, store=store, proxies=proxies), tmp_path)
    assert (proxies / "proxies.pickle").stat().st_size < 10_000
    assert len(pickle.loads((proxies / "proxies.pickle").read_bytes())) == 5
    moved = store.rename(tmp_path / "mounted elsewhere")
    _run(
        _command("proxy_consume", store=shlex.quote(str(moved)), proxies=proxies,
                 result=tmp_path / "result"),
        tmp_path,
    )  # fmt: skip
    means = json.loads((tmp_path / "result" / "means.json").read_text())
    assert len(means) == 5
    assert means == pytest.approx([0.5] * 5, abs=0.05)
