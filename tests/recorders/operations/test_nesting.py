"""Rules of nested names."""

from __future__ import annotations

from mlflow_perf.recorders.operations.nesting import nest, unnest


def test_a_name_is_put_below_the_one_around() -> None:
    """Nest gives the whole name, and unnest the part that was given, inside out."""
    outer, outer_token = nest("epoch")
    inner, inner_token = nest("load.read")
    assert (outer, inner) == ("epoch", "epoch.load.read")
    assert unnest(inner, inner_token) == "load.read"
    assert unnest(outer, outer_token) == "epoch"
    again, token = nest("load")
    unnest(again, token)
    assert again == "load"
