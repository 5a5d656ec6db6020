"""What was loaded for mlflow-perf and is then imported by the job is the job's memory."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from tests.alone import alone

from mlflow_perf.core.import_watch import ImportWatch, _WatchedSpec
from mlflow_perf.core.own_cost import _imports, bring, brought_bytes

_MODULES = {
    "watched_base": "data = bytearray(b'x') * (30 << 20)",
    "watched_frame": "import watched_base\ndata = bytearray(b'x') * (20 << 20)",
    "watched_rest": "data = bytearray(b'x') * (40 << 20)",
    "watched_top": "import watched_base, watched_frame, watched_rest, watched_end\n"
    "def use():\n    import watched_frame",
    "watched_end": "",
}


def import_as_job(name: str) -> None:
    """Import a module as the job's script does."""
    exec(f"import {name}", {"__name__": "__main__"})


def brought_mb(before: int) -> float:
    """Return what was brought since, in MB."""
    return (brought_bytes() - before) / 2**20


@alone
def test_a_library_that_the_job_imports_too_is_the_jobs(tmp_path: Path) -> None:
    """It and what it needs count as the job's from then on; what only we need stays ours."""
    # Alone: what other tests have freed would be used again, and the process would not grow.
    for name, text in _MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    sys.path.insert(0, str(tmp_path))
    finders, before = list(sys.meta_path), brought_bytes()
    with bring():
        top = import_module("watched_top")
    assert sys.meta_path == finders
    assert brought_mb(before) == pytest.approx(90, abs=3)
    top.use()  # our libraries among themselves
    assert brought_mb(before) == pytest.approx(90, abs=3)
    import_as_job("watched_frame")
    assert brought_mb(before) == pytest.approx(40, abs=3)
    assert type(sys.modules["watched_frame"].__spec__) is ModuleSpec
    import_as_job("watched_top")
    assert brought_mb(before) == pytest.approx(0, abs=3)


def test_a_part_that_only_we_use_of_a_library_of_the_job_stays_ours(tmp_path: Path) -> None:
    """MLflow loads `pyarrow.fs`, which a job that imports pandas and with it pyarrow does not."""
    texts = {
        "parted/__init__": "import parted.inner",
        "parted/inner": "",
        "parted/extra": "import parted.deep",
        "parted/deep": "",
        "parted_user": "import parted, parted.extra, parted_end",
        "parted_end": "",
    }
    (tmp_path / "parted").mkdir()
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    sys.path.insert(0, str(tmp_path))
    resident = iter(range(0, 1 << 40, 1 << 20))
    watch = ImportWatch(lambda: True, lambda: next(resident))
    try:
        watch.start()
        import_module("parted_user")
        watch.stop()
        watch._is_own = lambda: False
        import_as_job("parted")
        without = watch.used_bytes()
        import_as_job("parted.extra")
        assert 0 < without < watch.used_bytes()
        assert watch._parts == {"parted.extra": "parted.extra", "parted.deep": "parted.extra"}
    finally:
        sys.path.remove(str(tmp_path))
        _WatchedSpec.watch = _imports


_NAMES = "; ".join(f"v{i} = {i}" for i in range(300))


@pytest.mark.parametrize(
    ("code", "is_use"),
    [
        ("hasattr(module, '__version__')", False),
        ("getattr(module, 'missing', None)", False),
        ("import pickle; pickle.whichmodule(anonymous, 'missing')", False),
        ("try: module.missing\nexcept AttributeError: pass", False),
        ("try: module.missing()\nexcept AttributeError: pass", False),
        ("import seen_only", True),
        (f"{_NAMES}; import seen_only", True),
        ("from seen_only import there", True),
        # Before Python 3.11 that function asks no spec.
        ("import importlib; importlib.import_module('seen_only')", sys.version_info >= (3, 11)),
    ],
)
def test_a_look_at_a_module_is_no_use_of_it(tmp_path: Path, code: str, is_use: bool) -> None:
    """Python asks a module's spec for an attribute that it lacks, too, for the error's text."""
    (tmp_path / "seen_only.py").write_text("there = 1")
    (tmp_path / "seen_end.py").write_text("")
    sys.path.insert(0, str(tmp_path))
    watch = ImportWatch(lambda: True, lambda: 0)
    called: list[None] = []
    try:
        watch.start()
        module = import_module("seen_only")
        import_module("seen_end")
        watch.stop()
        watch._is_own = lambda: False
        watch.call_when_imported("seen_only", lambda: called.append(None))
        names = {"module": module, "anonymous": SimpleNamespace(__module__=None)}
        exec(compile(code, "job", "exec"), {"__name__": "__main__", **names})
        assert bool(called) is is_use
        assert watch.is_unused("seen_only") is not is_use
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["seen_only"], sys.modules["seen_end"]
        _WatchedSpec.watch = _imports


def test_a_missing_module_is_looked_at_once() -> None:
    """MLflow asks for the same missing packages a dozen times for each run."""
    reads: list[None] = []

    def read_bytes() -> int:
        reads.append(None)
        return 0

    watch = ImportWatch(lambda: True, read_bytes)
    _WatchedSpec.watch = _imports  # as it was
    for name in ("missing_one", "missing_two") * 3:
        watch.find_spec(name, None)
    assert len(reads) == 2


@alone
def test_no_lazy_module_is_loaded_and_none_raises() -> None:
    """Objects that stand in for modules until they are used are not used by the watch."""

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise ImportError(name)

    class Proxy:
        def __getattr__(self, name: str) -> object:
            raise ImportError(name)

    with bring():
        sys.modules["watched_lazy"] = Lazy("watched_lazy")
        sys.modules["watched_proxy"] = cast("ModuleType", Proxy())
    assert sys.meta_path.count(_imports) == 0
