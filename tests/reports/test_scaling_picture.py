"""The picture of a component's scaling."""

from __future__ import annotations

from mlflow_perf.analysis.scaling_runs import ScalingPoint, study_scaling
from mlflow_perf.reports.scaling_picture import draw_scaling, render_scaling


def test_a_page_shows_each_component_and_escapes_its_name() -> None:
    """One picture each, with a dot per run and the best counts in words."""
    points = [ScalingPoint(None, n, 10.0 + 90.0 / n) for n in (1, 2, 4)]
    study = study_scaling("<script>", points)
    picture = draw_scaling(study)
    assert picture.count("<circle") == 3
    assert "shortest on 8, fewest node-hours on 1 of 1, 2, 4, 8 nodes" in picture
    page = render_scaling([study, study_scaling("other", points)])
    assert page.count("<img") == 2
    assert 'alt="Run time of other over its nodes: 1 min 40 s on 1, 55 s on 2, 32.5 s on 4' in page
    assert "<script>" not in page.partition("</head>")[2]
