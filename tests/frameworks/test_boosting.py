"""LightGBM and XGBoost: each boosting iteration is a step."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mlflow_perf.recorders.steps import StepMetrics, part, steps

xgboost = pytest.importorskip(
    "xgboost", reason="xgboost is not installed: run `make test-frameworks`"
)
ROWS = np.random.default_rng(0).random((200, 4))
TRUTH = (ROWS[:, 0] > 0.5).astype(int)


def check(session: StepMetrics, count: int) -> None:
    session.close_loops()
    found = session.records()["boosting"][0]
    assert found.step.count == count
    assert found.parts["update"].count == count
    assert found.parts["evaluation"].count == count
    named = found.parts["update"].total_ms + found.parts["evaluation"].total_ms
    assert named == pytest.approx(found.step.total_ms, rel=0.5)
    assert found.parts["input"].total_ms < 0.05 * found.step.total_ms


def test_lightgbm(session: StepMetrics) -> None:
    """`train` and the classifiers of scikit-learn's kind are followed alike."""
    lightgbm = pytest.importorskip("lightgbm")
    data = lightgbm.Dataset(ROWS, TRUTH)
    lightgbm.train({"verbose": -1, "objective": "binary"}, data, 5, valid_sets=[data])
    model = lightgbm.LGBMClassifier(n_estimators=7, verbose=-1)
    model.fit(ROWS, TRUTH, eval_set=[(ROWS, TRUTH)])
    check(session, 12)


def test_a_loop_of_the_job_around_it(session: StepMetrics) -> None:
    """With parts of its own it is left alone; else the boosting is a part of its steps."""
    lightgbm = pytest.importorskip("lightgbm")

    def train() -> None:
        parameters = {"verbose": -1, "objective": "binary"}
        lightgbm.train(parameters, lightgbm.Dataset(ROWS, TRUTH), 5)

    for _ in steps(range(2)):
        with part("fit"):
            train()
    assert set(session.records()) == {"step"}
    for _ in steps(range(2), name="fold"):
        train()
    session.close_loops()
    assert session.records()["boosting"][0].step.count == 10
    assert session.records()["fold"][0].parts["boosting"].count == 2


def test_a_step_contains_the_callbacks(session: StepMetrics) -> None:
    """They are its rest; only those after the last update belong to no step."""
    lightgbm = pytest.importorskip("lightgbm")
    lightgbm.train(
        {"verbose": -1, "objective": "binary"},
        lightgbm.Dataset(ROWS, TRUTH),
        5,
        callbacks=[lambda _: time.sleep(0.05)],
    )
    session.close_loops()
    found = session.records()["boosting"][0]
    assert found.step.total_ms >= 4 * 50.0
    assert found.divide()["rest"] >= 0.75 * 50.0


def test_the_folds_of_a_cross_validation_share_their_time(session: StepMetrics) -> None:
    """Their updates take turns: a step is its own update and evaluation, not those of others."""
    lightgbm = pytest.importorskip("lightgbm")
    parameters = {"verbose": -1, "objective": "binary", "num_threads": 1}
    began = time.perf_counter()
    lightgbm.cv(parameters, lightgbm.Dataset(ROWS, TRUTH), 20, nfold=5, stratified=False)
    took_ms = 1e3 * (time.perf_counter() - began)
    session.close_loops()
    found = session.records()["boosting"][0]
    assert found.step.count == 100
    assert found.step.total_ms < took_ms
    assert found.divide()["rest"] < 0.2 * found.step.mean_ms


def test_xgboost(session: StepMetrics) -> None:
    """`train` and the classifiers of scikit-learn's kind are followed alike."""
    data = xgboost.DMatrix(ROWS, TRUTH)
    xgboost.train({}, data, 5, evals=[(data, "rows")], verbose_eval=False)
    model = xgboost.XGBClassifier(n_estimators=7)
    model.fit(ROWS, TRUTH, eval_set=[(ROWS, TRUTH)], verbose=False)
    check(session, 12)
