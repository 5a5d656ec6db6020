"""The HTML pages: small, safe and complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reports import html_samples as samples

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.reports import html
from mlflow_perf.reports.html import render, render_comparison

ASSETS = Path(html.__file__).parent / "templates"


def test_a_page_of_one_node_is_small() -> None:
    """One node of a thousand reports makes less than 400 kB."""
    assert len(render(samples.document(1, rows=1000)).encode()) < 400_000


@given(st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_text_survives(text: str) -> None:
    """Whatever a name holds, the page's structure and its data stay whole."""
    node = NodeDocument(
        node={"hostname": text},
        component=text,
        summary={"duration_sec": 1.0},
        reports={"elapsed_sec": [0.0, 1.0], f"x{text}": [1.0, 2.0]},
        operations={text: {"count": 1, "total_ms": 1.0}},
        extra={"bottleneck": text, "advice": text},
    )
    page = render(PerfDocument({0: node}))
    assert page.count("<script") == page.count("</script>") == 3
    found = re.search(r'<script type="application/json" id="curves">(.*?)</script>', page, re.S)
    assert found is not None
    assert f"x{text}" in json.loads(found[1])["values"]
    compared = render_comparison({"runs": [text, text], "notes": [text]})
    assert compared.count("<script") == 1


def test_assets_cannot_end_their_element() -> None:
    """No script or style sheet of ours contains the closing tag of its own element."""
    for path in [*ASSETS.rglob("*.js"), *ASSETS.rglob("*.css")]:
        text = path.read_text(encoding="utf-8").lower()
        assert "</script" not in text, path
        assert "</style" not in text, path
        assert "<!--" not in text, path


def test_the_page_names_no_address() -> None:
    """Nothing in the page is loaded from anywhere, and its policy forbids it besides."""
    page = render(samples.document(1, rows=10))
    assert not re.search(
        r'(?:src|href|action)\s*=\s*["\']?(?!data:)[a-z/]', page.split("<script")[0]
    )
    assert "default-src 'none'" in page
    assert "'unsafe-eval'" not in page
    assert page.index('<meta charset="utf-8">') < 200


def test_no_nan_reaches_the_page() -> None:
    """A value that is missing or not finite becomes a gap, in strict JSON."""
    node = NodeDocument(
        reports={
            "elapsed_sec": [0.0, None, 2.0],
            "mem_percent": [float("nan"), 5.0, None],
            "disk_io_read_mb": [0.0, 0.0, float("inf")],
        }
    )
    page = render(PerfDocument({0: node}))
    assert "NaN" not in page.split('id="curves">')[1].split("</script>")[0]


def test_any_text_can_be_written() -> None:
    """A page with half a surrogate pair, as from a file name that is not UTF-8, can be written."""
    node = NodeDocument(component="a\udc80", operations={"attributes": {"file": "b\udc81"}})
    assert "a?" in render(PerfDocument({0: node})).encode("utf-8").decode()
