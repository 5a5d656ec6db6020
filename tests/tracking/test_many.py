"""Documents of many nodes are read in several processes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.load import read_documents
from mlflow_perf.tracking.many import read_all

COUNT = 100


def read(path: Path) -> PerfDocument:
    """Read a document as another process does; by name, so that it can be told which."""
    return PerfDocument.from_json(path.read_bytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents of so many nodes that one process is not asked to read them all."""
    for index in range(COUNT):
        node = NodeDocument({"index": index}, reports={"elapsed_sec": [0, 1.5], "a": [None, index]})
        PerfDocument({index: node}).save(tmp_path / f"node-{index}.json")
    return tmp_path


def columns(document: PerfDocument) -> dict[str, list[float | None]]:
    """Return the columns of a document's one node as lists without NaN."""
    (node,) = document.nodes.values()
    return {k: [None if v is None or v != v else float(v) for v in c]
            for k, c in node.reports.items()}  # fmt: skip


def test_processes_change_nothing(folder: Path) -> None:
    """Two processes yield what one yields, in the same order."""
    alone, shared = (list(read_documents(folder, processes=count)) for count in (1, 2))
    assert [list(d.nodes) for d in shared] == [[i] for i in range(COUNT)]
    assert [columns(d) for d in shared] == [columns(d) for d in alone]


def test_a_bad_file_is_named_from_another_process(folder: Path) -> None:
    """What is wrong with a file arrives as the same error as from this process."""
    (folder / "node-70.json").write_text("{", encoding="utf-8")
    with pytest.raises(DocumentError, match=r"node-70\.json: This is not a JSON document"):
        list(read_documents(folder, processes=2))


def test_one_may_stop_early(folder: Path) -> None:
    """Whoever takes only the first documents does not wait for the others."""
    documents = read_documents(folder, processes=2)
    assert [list(d.nodes) for d in itertools.islice(documents, 2)] == [[0], [1]]
    documents.close()


def test_without_processes_this_one_reads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process may be started, the documents are read here, each once."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError("no processes")

    monkeypatch.setattr("mlflow_perf.tracking.many.ProcessPoolExecutor", refuse)
    files = sorted(folder.glob("*.json"))
    assert len(list(read_all(files, read, processes=4))) == COUNT
