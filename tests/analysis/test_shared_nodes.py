"""What steps side by side on one machine are charged."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis.shared_nodes import charge_shared_nodes
from mlflow_perf.analysis.workflow_steps import Step, StepNode


def step(
    name: str, begin: float, length: float, *, own_sec: float, busy_sec: float, cores: float = 2.0,
    host: str = "one", traffic: Mapping[str, float] = MappingProxyType({}),
) -> Step:  # fmt: skip
    """Return a step of one node that held `cores` CPUs."""
    held = cores * length
    summary = {
        "cpu_limit_cores": cores, "job_cpu_hours": own_sec / 3600, "node_cpu_hours": held / 3600,
        "node_used_cpu_hours": busy_sec / 3600, "node_unused_cpu_hours": (held - busy_sec) / 3600,
        **traffic,
    }  # fmt: skip
    return Step(name, begin, length, nodes=(StepNode(0, begin, length, summary, host, 2.0),))


def seconds(steps: list[Step], key: str) -> float:
    """Return the sum of a figure in hours over the steps, in seconds."""
    return sum(step.total(key) for step in steps) * 3600


def test_two_steps_side_by_side_hold_the_node_once() -> None:
    """Two steps of 7.4 CPU-seconds over the same 20 s of a machine of 2 CPUs: 14.8 of 40."""
    steps = [step(name, 100.0, 20.0, own_sec=7.4, busy_sec=14.8) for name in ("a", "b")]
    charged = charge_shared_nodes(steps)
    assert [s.total("node_used_cpu_hours") * 3600 for s in charged] == pytest.approx([7.4, 7.4])
    assert seconds(charged, "node_cpu_hours") == pytest.approx(40.0)
    assert seconds(charged, "node_unused_cpu_hours") == pytest.approx(40.0 - 14.8)
    assert charged[0].figures["run_cpu_hours"] * 3600 == pytest.approx(20.0)


def test_what_others_used_beside_the_steps_is_not_unused() -> None:
    """One CPU of two was kept busy by others for all of the 15 s, one by `a` for 10 s."""
    steps = [step("a", 100.0, 10.0, own_sec=10.0, busy_sec=20.0),
             step("b", 105.0, 10.0, own_sec=0.0, busy_sec=15.0)]  # fmt: skip
    charged = charge_shared_nodes(steps)
    assert seconds(charged, "node_cpu_hours") == pytest.approx(30.0)
    assert seconds(charged, "node_unused_cpu_hours") == pytest.approx(5.0)
    assert [s.total("job_cpu_hours") * 3600 for s in charged] == [10.0, 0.0]
    steps = [step("a", 100.0, 10.0, own_sec=10.0, busy_sec=15.0),
             step("b", 105.0, 10.0, own_sec=10.0, busy_sec=15.0)]  # fmt: skip
    assert seconds(charge_shared_nodes(steps), "node_unused_cpu_hours") == pytest.approx(10.0)


def test_steps_beside_others_on_different_cpus_left_nothing_unused() -> None:
    """Each of the two used half of its own CPU, and others the rest."""
    steps = [step(n, 100.0, 8.0, own_sec=4.0, busy_sec=8.0, cores=1.0) for n in ("a", "b")]
    charged = charge_shared_nodes(steps)
    assert seconds(charged, "node_cpu_hours") == pytest.approx(16.0)
    assert seconds(charged, "node_unused_cpu_hours") == pytest.approx(0.0)


@pytest.mark.parametrize("hosts", [("one", "two"), ("", ""), ("one", "")])
def test_steps_on_different_machines_stay_as_they_are(hosts: tuple[str, str]) -> None:
    """Also where the machines are unknown."""
    steps = [step(h or "a", 100.0, 20.0, own_sec=7.4, busy_sec=38.0, host=h) for h in hosts]
    assert charge_shared_nodes(steps) == steps


def test_steps_one_after_the_other_stay_as_they_are() -> None:
    """A machine that a step had to itself is charged to it, with all that was busy."""
    steps = [step("a", 100.0, 20.0, own_sec=7.4, busy_sec=9.0),
             step("b", 120.0, 20.0, own_sec=7.4, busy_sec=9.0)]  # fmt: skip
    assert charge_shared_nodes(steps) == steps


def test_steps_that_own_different_cpus_hold_them_all() -> None:
    """Two steps of one CPU each hold both CPUs of the machine."""
    steps = [step(n, 100.0, 20.0, own_sec=5.0, busy_sec=5.0, cores=1.0) for n in ("a", "b")]
    charged = charge_shared_nodes(steps)
    assert seconds(charged, "node_cpu_hours") == pytest.approx(40.0)
    assert seconds(charged, "node_unused_cpu_hours") == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("times", "seen", "charges"),
    [
        ([(100.0, 20.0), (100.0, 20.0)], [120.0, 120.0], [60.0, 60.0]),
        ([(100.0, 10.0), (105.0, 10.0)], [100.0, 100.0], [75.0, 75.0]),  # 5 s alone, 5 s shared
        ([(100.0, 10.0), (105.0, 10.0)], [100.0, 0.0], [100.0, 0.0]),  # all in its 5 s alone
        ([(100.0, 10.0), (105.0, 0.0)], [100.0, 0.0], [100.0, 0.0]),
        ([(100.0, 10.0), (100.0, 10.0)], [0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_traffic_of_a_machine_is_that_of_its_disks_once(
    times: list[tuple[float, float]], seen: list[float], charges: list[float]
) -> None:
    """As of steps one after the other, it is what the disks moved, not the steps' processes."""
    key = "total_disk_io_write_mb"
    steps = [
        step(str(n), begin, length, own_sec=1.0, busy_sec=2.0, traffic={key: traffic})
        for n, ((begin, length), traffic) in enumerate(zip(times, seen, strict=True))
    ]
    charged = charge_shared_nodes(steps)
    assert [s.total(key) for s in charged] == pytest.approx(charges)
    assert [s.figures[f"run_{key}"] for s in charged] == pytest.approx(charges)


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.floats(0.5, 50), st.floats(0, 1)), min_size=1, max_size=8
    )
)
def test_the_charges_add_up_to_the_machine(times: list[tuple[float, float, float]]) -> None:
    """However steps overlap: used + unused = held, and held at most the machine's time."""
    share = 2.0 / len(times)
    steps = [
        step(str(n), begin, length, own_sec=use * share * length, busy_sec=2.0 * length)
        for n, (begin, length, use) in enumerate(times)
    ]
    charged = charge_shared_nodes(steps)
    held, unused = (seconds(charged, f"node_{key}") for key in ("cpu_hours", "unused_cpu_hours"))
    used = seconds(charged, "node_used_cpu_hours")
    assert used + unused == pytest.approx(held)
    begin, end = min(s.started for s in steps), max(s.ended for s in steps)
    assert held <= 2.0 * (end - begin) * (1 + 1e-9)
    assert all(value >= 0 for s in charged for value in s.nodes[0].summary.values())
