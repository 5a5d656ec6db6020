"""The profile of a job: shares, the tree of bounded size, parts of it, the speedscope file."""

from __future__ import annotations

import json
import random

import pytest

from mlflow_perf.model.profile import Profile
from mlflow_perf.model.profile_building import build_profile
from mlflow_perf.model.samples import NATIVE_THREADS, Function, RawStacks

MAIN = Function("<module>", "train.py", 1, False)
LOAD = Function("load", "train.py", 10, False)
READ = Function("read_csv", "pandas/io.py", 70, True)
FIT = Function("fit", "train.py", 20, False)


def _raw(*cells: tuple[float, str, tuple[Function, ...], float, float]) -> RawStacks:
    """Return samples: (time, root, path, wall, CPU)."""
    functions = list(dict.fromkeys(one for cell in cells for one in cell[2]))
    stacks = [
        (root, 7 + len(path), tuple(map(functions.index, path))) for _, root, path, *_ in cells
    ]
    return RawStacks(
        functions,
        stacks,
        [(at, 0.0, i, wall, cpu, 1) for i, (at, _, _, wall, cpu) in enumerate(cells)],
    )


def _job() -> RawStacks:
    return _raw(
        (100.5, "main thread", (MAIN, LOAD, READ), 3.0, 0.3),
        (103.5, "main thread", (MAIN, LOAD), 1.0, 1.0),
        (105.0, "main thread", (MAIN, FIT, FIT), 6.0, 6.0),
        (105.0, "other threads", (LOAD,), 10.0, 0.0),
    )


def test_shares_are_of_all_threads_and_recursion_counts_once() -> None:
    """Own time, time with what was called, and how much of the own time computed."""
    found = build_profile([_job()], started=100.0, duration_sec=10.0)
    assert found is not None
    rows = {row["function"]: row for row in found["functions"]}
    assert rows["fit"]["self_pct"] == rows["fit"]["total_pct"] == pytest.approx(30.0)
    assert rows["load"]["self_pct"] == pytest.approx(55.0)
    assert rows["load"]["total_pct"] == pytest.approx(70.0)
    assert rows["load"]["cpu_pct"] == pytest.approx(100 / 11, abs=0.01)
    assert rows["read_csv"]["cpu_pct"] == pytest.approx(10.0)
    assert rows["<module>"]["total_pct"] == pytest.approx(50.0)
    assert (found["samples"], found["wall_s"], found["cpu_s"]) == (4, 20.0, 7.3)


def test_libraries_are_credited_to_who_called_them() -> None:
    """The job's own functions, with the main thread's time beside that of all."""
    found = build_profile([_job()], started=100.0, duration_sec=10.0)
    assert found is not None
    assert [(row["function"], row["main_s"], row["wall_s"]) for row in found["own"]] == [
        ("fit", 6.0, 6.0),
        ("load", 4.0, 14.0),
    ]


BURN = Function("burn", "train.py", 30, False)
LAMBDA = Function("<lambda>", "train.py", 31, False)
GENERATED = Function("__init__", "<string>", 2, False)


def _list_callers(*cells: tuple[tuple[Function, ...], float]) -> list[tuple[str, float]]:
    """Return the callers of the longest of the job's own functions, from paths and seconds."""
    times = [(100.0 + i, "main thread", path, sec, sec) for i, (path, sec) in enumerate(cells)]
    found = build_profile([_raw(*times)], started=100.0, duration_sec=10.0)
    assert found is not None
    return [(one["function"], one["main_s"]) for one in found["own"][0]["callers"]]


def test_a_shared_function_has_its_callers() -> None:
    """Each with its part of the time, through libraries and lambdas; the job's own alone."""
    found = _list_callers(
        ((MAIN, LOAD, BURN), 1.0),
        ((MAIN, LOAD, LAMBDA, READ, BURN, READ), 2.0),
        ((MAIN, FIT, GENERATED, BURN), 4.0),
        ((READ, BURN), 1.0),
    )
    assert found == [("fit", 4.0), ("load", 3.0)]


def test_a_lambda_of_the_module_is_a_caller_by_its_place() -> None:
    """The module has many of them; also one that a thread calls has no function around it."""
    found = _list_callers(
        ((MAIN, LAMBDA, READ, BURN), 2.0),
        ((MAIN, LAMBDA._replace(line=32), BURN), 4.0),
        ((READ, LAMBDA, BURN), 1.0),
        ((MAIN, BURN), 0.5),
    )
    assert found == [
        ("a lambda at line 32 of train.py", 4.0),
        ("a lambda at line 31 of train.py", 3.0),
        ("train.py", 0.5),
    ]


def test_recursion_and_generated_code_have_no_callers() -> None:
    """Who called a function that called itself through another one is not one function."""
    assert _list_callers(((MAIN, LOAD, BURN, FIT, BURN), 1.0)) == []
    assert _list_callers(((MAIN, LOAD, GENERATED), 1.0)) == []


def test_the_main_thread_of_several_ranks_is_their_mean() -> None:
    """Two ranks of one node that each load for 4 s loaded for 4 s of the run, not for 8."""
    ranks = [_job(), _job()]
    found = build_profile(ranks, started=100.0, duration_sec=10.0)
    assert found is not None
    assert [(row["function"], row["main_s"], row["wall_s"]) for row in found["own"]] == [
        ("fit", 6.0, 12.0),
        ("load", 4.0, 28.0),
    ]
    tree = Profile.from_dict(found["flame"])
    assert tree is not None
    assert tree.list_own()[0]["main_s"] == 6.0


@pytest.mark.parametrize(
    ("starts", "merged"), [((100.0, 100.0, 100.0), True), ((100.0, 105.0), False)]
)
def test_main_threads_never_take_longer_than_the_run(
    starts: tuple[float, ...], merged: bool
) -> None:
    """Three ranks whose samples were merged into one file, and one that began anew half-way."""
    length = 10.0 / len(set(starts))
    raws = [
        _raw(
            *(
                (start + i * 0.5, "main thread", (MAIN, FIT), 0.5, 0.5)
                for i in range(int(2 * length))
            )
        )
        for start in starts
    ]
    if merged:
        cells = [cell for raw in raws for cell in raw.cells]
        raws = [RawStacks(raws[0].functions, raws[0].stacks, cells)]
    found = build_profile(raws, started=100.0, duration_sec=10.0)
    assert found is not None
    assert [row["main_s"] for row in found["own"]] == [pytest.approx(10.0)]


def test_a_part_of_the_run_is_cut_out_of_the_tree() -> None:
    """What was sampled outside of the run is left out, and each bucket has its own time."""
    raw = _raw(
        (99.0, "main thread", (MAIN,), 50.0, 0.0),
        (101.0, "main thread", (LOAD,), 2.0, 0.0),
        (107.0, "main thread", (FIT,), 3.0, 3.0),
    )
    found = build_profile([raw], started=100.0, duration_sec=10.0)
    tree = Profile.from_dict((found or {})["flame"])
    assert tree is not None
    assert [row["function"] for row in tree.list_own(0, 5)] == ["load"]
    assert [row["function"] for row in tree.list_own(5, 10)] == ["fit"]
    assert build_profile([raw], started=500.0, duration_sec=1.0) is None


def test_the_tree_survives_a_round_trip_and_a_damaged_one_is_none() -> None:
    """Strict JSON and back; indexes that lead nowhere, or in a circle, are refused."""
    found = build_profile([_job()], started=100.0, duration_sec=10.0)
    assert found is not None
    flame = json.loads(json.dumps(found["flame"], allow_nan=False))
    tree = Profile.from_dict(flame)
    assert tree is not None
    assert tree.as_dict() == flame
    for damage in (
        {"parents": [0] * len(flame["parents"])}, {"names": [99] * len(flame["names"])},
        {"buckets": [[1, 2]]}, {"functions": [[1]]}, {"width_s": 0}, {"buckets": [[999, 1, 1]]},
    ):  # fmt: skip
        assert Profile.from_dict({**flame, **damage}) is None
    assert Profile.from_dict("x") is None


def test_a_huge_profile_stays_small_and_keeps_all_time() -> None:
    """Of 20,000 stacks the small ones join `(other)`; no second is lost."""
    dice = random.Random(1)
    functions = [Function(f"f{i}", "big.py", i, False) for i in range(300)]
    paths = [tuple(dice.sample(functions, dice.randrange(1, 30))) for _ in range(20_000)]
    cells = [
        (100.0 + 1000 * dice.random(), "main thread", path, dice.expovariate(1), 0.1)
        for path in paths
    ]
    found = build_profile([_raw(*cells)], started=100.0, duration_sec=1000.0)
    assert found is not None
    assert len(json.dumps(found)) < 100_000
    tree = Profile.from_dict(found["flame"])
    assert tree is not None
    whole = sum(wall for wall, _ in tree.sum_nodes().values())
    assert whole == pytest.approx(sum(cell[3] for cell in cells), rel=0.01)


def test_the_speedscope_file_follows_the_published_schema() -> None:
    """The rules of speedscope's file-format-schema.json for sampled profiles."""
    found = build_profile([_job()], started=100.0, duration_sec=10.0)
    tree = Profile.from_dict((found or {})["flame"])
    assert tree is not None
    data = json.loads(json.dumps(tree.to_speedscope("train"), allow_nan=False))
    assert set(data) == {"$schema", "exporter", "name", "activeProfileIndex", "shared", "profiles"}
    assert data["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    for frame in data["shared"]["frames"]:
        assert isinstance(frame["name"], str)
        assert set(frame) <= {"name", "file", "line", "col"}
    for profile in data["profiles"]:
        assert profile["type"] == "sampled"
        assert profile["unit"] == "seconds"
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == pytest.approx(sum(profile["weights"]))
        for stack in profile["samples"]:
            assert all(0 <= one < len(data["shared"]["frames"]) for one in stack)
    wall, cpu = data["profiles"]
    assert (wall["endValue"], cpu["endValue"]) == pytest.approx((20.0, 7.3))


def test_native_threads_add_cpu_time_alone_to_their_function() -> None:
    """Wall shares stay; those of CPU time, and the number of samples, know of them."""
    native = _raw(
        (101.0, "main thread", (FIT,), 5.0, 5.0),
        (101.0, "main thread", (FIT, NATIVE_THREADS), 0.0, 15.0),
        (106.0, "main thread", (LOAD,), 5.0, 5.0),
        (106.0, "other threads", (NATIVE_THREADS,), 0.0, 1.0),
    )
    # The sampler gives the time of these threads no sample of its own.
    native.cells[:] = [(*cell[:5], int(cell[3] > 0.0)) for cell in native.cells]
    found = build_profile([native], started=100.0, duration_sec=11.0)
    assert found is not None
    own = {row["function"]: row for row in found["own"]}
    assert (own["fit"]["wall_s"], own["fit"]["cpu_s"], own["fit"]["native_s"]) == (5.0, 20.0, 15.0)
    assert (own["load"]["cpu_s"], "native_s" in own["load"]) == (5.0, False)
    assert own[NATIVE_THREADS.name]["cpu_s"] == 1.0
    assert [(r["function"], r["self_pct"]) for r in found["functions"]] == [
        ("fit", 50.0),
        ("load", 50.0),
    ]
    assert 1.0 <= found["equal_samples"]["cpu"] <= 2.0
