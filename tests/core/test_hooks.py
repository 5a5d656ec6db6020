"""Functions of higher modules that lower ones call."""

from __future__ import annotations

import pytest

import mlflow_perf
from mlflow_perf.core.hooks import hooks


def test_a_document_draws_itself_through_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package sets the hooks, and a document calls them with itself."""
    document = mlflow_perf.PerfDocument()
    assert "<iframe" in hooks.notebook_html(document)
    monkeypatch.setattr(hooks, "notebook_html", lambda shown: f"page of {shown is document}")
    monkeypatch.setattr(hooks, "plot", lambda shown, **options: (shown, options))
    assert document._repr_html_() == "page of True"
    assert document.plot(node=1) == (document, {"node": 1})
