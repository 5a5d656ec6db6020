"""torch: a plain training loop over a DataLoader is divided without a line of code."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest

from mlflow_perf.integrations import training
from mlflow_perf.recorders.steps import StepMetrics, part, steps

torch = pytest.importorskip("torch", reason="torch is not installed: run `make test-frameworks`")


Dataset: Any = torch.utils.data.Dataset
Module: Any = torch.nn.Module


class Rows(Dataset):  # type: ignore[misc]  # untyped here
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        time.sleep(0.001)
        return torch.ones(4) * index, torch.zeros(1)


def make_loader(**options: Any) -> Any:
    return torch.utils.data.DataLoader(Rows(), batch_size=8, **options)


class Slow(Module):  # type: ignore[misc]  # untyped here
    """A layer whose passes take as long as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, rows: Any) -> Any:
        time.sleep(0.003)
        return self.layer(rows)


def train(model: Any, batches: Any, *, evaluate_on: Any = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (rows, truth) in enumerate(batches):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(rows), truth)
        loss.backward()
        optimizer.step()
        if evaluate_on is not None and number % 4 == 3:
            with torch.no_grad():
                for more, _ in evaluate_on:
                    model(more)
            torch.save(model.state_dict(), io.BytesIO())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_plain_loop(session: StepMetrics, workers: int) -> None:
    """A pass over a loader that trains is the loop `step`, with input, forward and the rest."""
    for _ in range(2):
        train(Slow(), make_loader(num_workers=workers))
    found = session.records()["step"][0]
    assert found.step.count == 16
    assert {"input", "forward", "backward", "optimizer"} <= found.parts.keys()
    assert found.parts["forward"].percentiles([50])[0] >= 3.0
    if not workers:
        assert found.parts["input"].percentiles([50])[0] >= 8.0
    assert found.parts["optimizer"].count == 16
    named = sum(found.parts[name].total_ms for name in ("forward", "backward", "optimizer"))
    assert named <= found.parts["compute"].total_ms


@pytest.mark.parametrize("by_name", [True, False])
def test_the_closure_of_an_update_is_none_of_the_optimizers_time(
    session: StepMetrics, by_name: bool
) -> None:
    """Lightning's hooks run in it; L-BFGS calls it again, and works between two calls."""
    model, seen = Slow(), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, tolerance_change=0)
    for rows, truth in make_loader():

        def closure(rows: Any = rows, truth: Any = truth) -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(rows), truth)
            loss.backward()
            time.sleep(0.02)
            return loss

        seen.append(optimizer.step(closure=closure) if by_name else optimizer.step(closure))
    found = session.records()["step"][0]
    assert all(float(loss.detach()) >= 0 for loss in seen)
    assert found.parts["optimizer"].count == found.parts["forward"].count == 8
    assert 6.0 <= found.parts["forward"].percentiles([50])[0] < 20.0
    assert found.parts["optimizer"].percentiles([50])[0] < 20.0
    assert found.divide()["rest"] > 0.3


@pytest.mark.parametrize("workers", [0, 1])
def test_two_loaders_feed_a_step(session: StepMetrics, workers: int) -> None:
    """The wait for either is the step's wait for data, and no evaluation."""
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    first, second = make_loader(**options), make_loader(**options)
    for _ in range(2):
        train(Slow(), (one for one, _ in zip(first, second, strict=True)))
    for _ in steps(range(2), name="epoch"):
        train(Slow(), first)
    found = session.records()
    assert "evaluation" not in found
    assert found["step"][0].step.count == 32
    step = found["step"][0]
    if not workers:
        assert step.parts["input"].percentiles([75])[0] >= 16.0
        assert step.parts["forward"].percentiles([50])[0] < 8.0
    assert step.parts["input"].total_ms + step.parts["compute"].total_ms == pytest.approx(
        step.step.total_ms
    )


def test_an_evaluation_within_a_step_is_a_part_of_it(session: StepMetrics) -> None:
    """A loader that is only read within a step is its `evaluation`, and has a loop of its own."""
    train(Slow(), make_loader(), evaluate_on=make_loader())
    found = session.records()
    assert found["step"][0].step.count == 8
    assert found["step"][0].parts["evaluation"].count == 2
    assert found["step"][0].parts["checkpoint"].count == 2
    assert found["evaluation"][0].step.count == 16
    assert found["step"][0].parts["evaluation"].total_ms >= found["evaluation"][0].step.total_ms


def test_a_checkpoint_after_a_pass_belongs_to_the_loop(session: StepMetrics) -> None:
    """It is at the end of an epoch; one before all training belongs to nothing."""
    model = Slow()
    torch.save(model.state_dict(), io.BytesIO())
    for _ in range(3):
        train(model, make_loader())
        with torch.no_grad():
            for rows, _ in make_loader():
                model(rows)
        torch.save(model.state_dict(), io.BytesIO())
    loops = session.records()
    assert loops["step"][0].parts["checkpoint"].count == 3
    assert "checkpoint" not in loops["evaluation"][0].parts


def test_passes_within_a_step_are_a_part_of_it(session: StepMetrics) -> None:
    """Epochs around batches: the time of the batches is not in the rest of an epoch."""
    model = Slow()
    train(model, make_loader())  # the first update imports much of torch, for seconds
    for _ in steps(range(2), name="epoch"):
        train(model, make_loader())
        torch.save(model.state_dict(), io.BytesIO())
    epoch = session.records()["epoch"][0]
    assert epoch.divide()["steps"] > epoch.divide()["rest"]
    assert epoch.parts["checkpoint"].count == 2


def test_a_loop_that_the_code_divides_is_left_to_it(session: StepMetrics) -> None:
    """With `steps` and `part` in the code nothing counts twice."""
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows, truth in steps(make_loader(), name="mine"):
        with part("forward"):
            loss = torch.nn.functional.mse_loss(model(rows), truth)
        with part("backward"):
            loss.backward()
        with part("optimizer"):
            optimizer.step()
    assert session.records().keys() == {"mine"}
    found = session.records()["mine"][0]
    assert found.parts.keys() == {"input", "compute", "forward", "backward", "optimizer"}
    assert found.parts["forward"].percentiles([50])[0] < 30.0
    assert found.parts["input"].percentiles([50])[0] >= 8.0


def test_breaks_and_errors_pass_through(session: StepMetrics) -> None:
    """A loop that is left early counts its steps; an error of the loader is the job's."""
    for number, _ in enumerate(make_loader()):
        if number == 2:
            break
    assert session.records()["evaluation"][0].step.count == 3

    class Broken(Rows):
        def __getitem__(self, index: int) -> tuple[Any, Any]:
            if index == 20:
                raise KeyError("the job's own")
            return super().__getitem__(index)

    with pytest.raises(KeyError, match="the job's own"):
        list(torch.utils.data.DataLoader(Broken(), batch_size=8))


def test_everything_is_put_back(session: StepMetrics) -> None:
    """After `disable`, torch's functions are its own again."""
    loader_class = torch.utils.data.dataloader._BaseDataLoaderIter
    assert hasattr(torch.autograd.backward, "__wrapped__")
    training.disable()
    for function in (torch.autograd.backward, torch.save, loader_class.__next__):
        assert not hasattr(function, "__wrapped__")
    train(Slow(), make_loader())
    assert session.is_empty()
