"""The pages as a browser shows them: report, workflow, comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reports import html_samples as samples
from tests.reports.html_browser import Browser, wait_for
from tests.reports.test_flame import make_node

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.reports.html import render, render_comparison

pytestmark = pytest.mark.e2e

UNEVEN: dict[str, list[float | None]] = {
    "timestamp": [100.0, 110.0, 111.0],
    "elapsed_sec": [0.0, 10.0, 11.0],
    "cpu_pct_per_cpu_avg": [20.0, 20.0, 75.0],
    "cpu_pct_per_cpu_min": [20.0, 20.0, 75.0],
    "cpu_pct_per_cpu_max": [20.0, 20.0, 75.0],
}
PAGES: dict[str, Callable[[], str]] = {
    "uneven": lambda: render(PerfDocument({0: NodeDocument(reports=UNEVEN, started=100.0)})),
    "one": lambda: render(samples.document(1, rows=300)),
    "merged": lambda: render(samples.document(1, rows=150, keep=50)),
    "instant": lambda: render(samples.document(1, rows=2)),
    "four": lambda: render(samples.document(4, rows=60)),
    "twelve": lambda: render(samples.document(12, rows=40)),
    "pictures": lambda: render(samples.document(1, rows=30), pictures=samples.PICTURES),
    "empty": lambda: render(PerfDocument({})),
    "workflow": lambda: render(PerfDocument({}), workflow=samples.WORKFLOW),
    "comparison": lambda: render_comparison(samples.COMPARISON, nodes=samples.compared_nodes()),
}
VISIBLE = """
const box = arguments[0].getBoundingClientRect();
return box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth;
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The address of each page as a file."""
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(make(), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in PAGES}


@pytest.mark.parametrize(
    ("name", "dark"),
    [
        *((name, False) for name in PAGES),
        ("one", True),
        ("twelve", True),
        ("workflow", True),
        ("comparison", True),
    ],
)
def test_pages_are_accessible_and_keep_to_themselves(
    name: str, dark: bool, files: dict[str, str], browser: Browser, axe: str
) -> None:
    """No page writes to the console, asks a host for anything, or breaks a rule of axe."""
    browser.show(files[name], width=1000, dark=dark)
    assert browser.messages() == []
    assert browser.hosts() == set()
    assert browser.violations(axe) == []


@pytest.mark.parametrize("name", ["one", "merged", "instant", "four", "twelve"])
def test_a_chart_per_curve_is_drawn(name: str, files: dict[str, str], browser: Browser) -> None:
    """Each chart holds a canvas with something on it, and no page scrolls sideways."""
    browser.show(files[name], width=625)
    drawn = browser.js(
        "return [...document.querySelectorAll('#charts canvas')].map(c => {"
        " const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " return p.some(v => v !== 0); });"
    )
    assert len(drawn) >= 5
    assert all(drawn)
    assert browser.js("return document.documentElement.scrollWidth <= innerWidth")


def test_the_mean_beside_a_curve_weighs_by_time(files: dict[str, str], browser: Browser) -> None:
    """Ten seconds at 20% and one at 75% are 25% on the mean: the last interval is a short one."""
    browser.show(files["uneven"])
    assert "mean 25%, peak 75%" in browser.js("return document.body.innerText")


def test_names_on_a_phone_do_not_cover_figures(tmp_path: Path, browser: Browser) -> None:
    """In a comparison at 390 px each name and key wraps within its own cell."""
    metric = "ops/features_of_the_day/total_ms"
    row = {**samples.COMPARISON["rows"][0], "metric": metric, "unit": "ms"}
    page = tmp_path / "comparison.html"
    page.write_text(render_comparison({**samples.COMPARISON, "rows": [row]}), encoding="utf-8")
    browser.show(page.as_uri(), width=390)
    parts = "[...document.querySelectorAll('.compared th[scope=row] > *')]"
    assert metric in browser.js(f"return {parts}.map(one => one.textContent)")
    right = "getBoundingClientRect().right"
    covers = f"one.{right} > one.parentElement.{right}"
    assert browser.js(f"return {parts}.filter(one => {covers}).map(one => one.textContent)") == []


def test_the_table_of_requests_fits_a_phone(files: dict[str, str], browser: Browser) -> None:
    """With memory in gigabytes and megabytes, the table of requests needs no scrolling."""
    browser.show(files["one"], width=390)
    browser.js("for (const one of document.querySelectorAll('details')) one.open = true")
    cells = "[...document.querySelectorAll('.asked tbody td')]"
    browser.js(f"for (const one of {cells}) one.textContent = '123.5 GB'")
    assert browser.js(f"return {cells}.length") >= 3
    right = "one.getBoundingClientRect().right"
    assert browser.js(f"return Math.max(...{cells}.map(one => {right})) <= innerWidth - 15")


@pytest.mark.parametrize("width", [625, 300])
@pytest.mark.parametrize("name", ["one", "four", "workflow"])
def test_headline_fits_the_small_pane(
    name: str, width: int, files: dict[str, str], browser: Browser
) -> None:
    """In the panes of MLflow's Compare, 150 px high, verdict and headline need no scrolling."""
    browser.show(files[name], width=width, height=150)
    find = browser.driver.find_elements
    parts = [*find("css selector", ".verdict"), *find("css selector", ".tiles > div")]
    assert len(parts) >= 7
    assert all(browser.js(VISIBLE, part) for part in parts)


def test_works_in_the_artifact_pane(tmp_path: Path, browser: Browser) -> None:
    """In MLflow's sandboxed blob frame the charts are drawn and nothing goes wrong."""
    (tmp_path / "host.html").write_text(
        "<!doctype html><meta charset=utf-8><iframe sandbox=allow-scripts width=625 height=500>"
        "</iframe><script>const text = " + repr_js(render(samples.document(1, rows=100))) + ";"
        "document.querySelector('iframe').src = URL.createObjectURL("
        "new Blob([text], {type: 'text/html'}));</script>",
        encoding="utf-8",
    )
    browser.show((tmp_path / "host.html").as_uri())
    browser.driver.switch_to.frame(0)
    wait_for(browser, "return document.querySelectorAll('#charts canvas').length >= 5")
    browser.driver.switch_to.default_content()
    assert browser.messages() == []
    assert browser.hosts() == set()


@pytest.mark.parametrize("dark", [False, True])
def test_the_flame_graph_works_in_the_artifact_pane(
    tmp_path: Path, browser: Browser, dark: bool
) -> None:
    """Search, keyboard and zoom in MLflow's sandboxed frame, light and dark."""
    from selenium.webdriver.common.keys import Keys

    (tmp_path / "host.html").write_text(
        "<!doctype html><meta charset=utf-8><iframe sandbox=allow-scripts width=1100 height=800>"
        "</iframe><script>const text = " + repr_js(render(PerfDocument({0: make_node()}))) + ";"
        "document.querySelector('iframe').src = URL.createObjectURL("
        "new Blob([text], {type: 'text/html'}));</script>",
        encoding="utf-8",
    )
    browser.show((tmp_path / "host.html").as_uri(), dark=dark)
    browser.driver.switch_to.frame(0)
    wait_for(browser, "return document.querySelectorAll('#flame .fn').length === 3")
    find, said = (browser.driver.find_element("id", f"flame-{name}") for name in ("find", "said"))
    find.send_keys("load")
    assert "“load” is in 50%" in said.text
    root = browser.driver.find_element("css selector", "#flame .fn")
    root.send_keys(Keys.ARROW_DOWN)
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for(browser, "return document.querySelectorAll('#flame .fn').length === 2")
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_for(browser, "return document.querySelectorAll('#flame .fn').length === 3")
    browser.driver.switch_to.default_content()
    assert browser.messages() == []
    assert browser.hosts() == set()


def repr_js(text: str) -> str:
    """Return a text as a JavaScript literal that may stand in a script element."""
    import json

    return json.dumps(text).replace("<", "\\u003c")


def test_the_keyboard_reads_a_chart(files: dict[str, str], browser: Browser) -> None:
    """Arrow keys move through the times of a chart and say the values there."""
    from selenium.webdriver.common.keys import Keys

    browser.show(files["one"])
    chart = browser.driver.find_element("css selector", ".plot")
    assert "peak" in (chart.get_attribute("aria-valuetext") or "")
    chart.send_keys(Keys.HOME)
    first = chart.get_attribute("aria-valuetext") or ""
    chart.send_keys(Keys.END)
    last = chart.get_attribute("aria-valuetext") or ""
    assert first.startswith("0 s: ")
    assert last.startswith("4:59: ")
    assert "job 10.8 cores" in last


def test_every_chart_has_its_table(files: dict[str, str], browser: Browser) -> None:
    """The button `table` shows the values of a chart, a row per time, and hides them again."""
    browser.show(files["one"])
    button = browser.driver.find_element("css selector", ".chart .as-table")
    button.click()
    rows = browser.js("return document.querySelectorAll('.chart .scroll tbody tr').length")
    assert rows == 300
    button.click()
    assert browser.js("return document.querySelectorAll('.chart .scroll').length") == 0


def test_one_node_can_be_chosen(files: dict[str, str], browser: Browser) -> None:
    """Choosing a node shows its curves in full, or over the distribution where nodes are many."""
    browser.show(files["four"])
    labels = "return [...document.querySelectorAll('.chart .keys')].map(k => k.textContent).join()"
    choose = (
        "const s = document.getElementById('node'); s.value = '2';"
        "s.dispatchEvent(new Event('change'));"
    )
    assert "least–most busy" not in browser.js(labels)
    browser.js(choose)
    assert "least–most busy" in browser.js(labels)
    browser.show(files["twelve"])
    browser.js(choose)
    assert "node 2" in browser.js(labels)


def test_the_limit_ends_with_the_last_node(tmp_path: Path, browser: Browser) -> None:
    """Of nodes over each other, the limit is also drawn after the first one has ended."""
    nodes = dict(samples.document(2, rows=60).nodes)
    for index, rows in ((0, 20), (1, 60)):
        curves = {name: values[:rows] for name, values in nodes[index].reports.items()}
        curves["cpu_limit_cores"] = [4.0] * rows
        nodes[index] = replace(nodes[index], reports=curves)
    page = tmp_path / "uneven.html"
    page.write_text(render(PerfDocument(nodes)), encoding="utf-8")
    browser.show(page.as_uri())
    browser.js(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () {"
        " window.saved.push(decodeURIComponent(this.href)); };"
        "const charts = [...document.querySelectorAll('.chart')];"
        "const one = charts.find(chart => chart.textContent.includes('limit'));"
        "one.querySelectorAll('.as-table')[1].click();"
    )
    heads, *rows = browser.js("return window.saved[0]").partition(",")[2].strip().splitlines()
    column = [head.partition(" ")[0] for head in heads.split(",")].index("limit")
    assert rows[-1].split(",")[column] == "4"


SHAPE = "return [...document.querySelectorAll('.chart')].map(c => c.getBoundingClientRect().top)"
ZOOM = """
const over = document.querySelector('.plot .u-over'), box = over.getBoundingClientRect();
const fire = (type, x, kind = 'mouse', Event = MouseEvent) => over.dispatchEvent(new Event(type, {
  bubbles: true, clientX: box.left + x * box.width, clientY: box.top + 20, pointerType: kind }));
"""
SWIPE = (
    ZOOM
    + """
fire('pointerdown', .2, 'touch', PointerEvent); fire('pointermove', .6, 'touch', PointerEvent);
fire('pointerup', .6, 'touch', PointerEvent);
"""
)
RANGE = """
const places = [...document.querySelectorAll(arguments[0] + ' .plot')];
return places.map(place => place.dataset.from + ' ' + place.dataset.to);
"""


def drag_over(browser: Browser, element: Any) -> None:
    """Drag the mouse over the middle of an element."""
    from selenium.webdriver import ActionChains

    drag = ActionChains(browser.driver).move_to_element_with_offset(element, -50, 0)
    drag.click_and_hold().move_by_offset(100, 0).release().perform()


def test_hovering_moves_nothing(files: dict[str, str], browser: Browser) -> None:
    """The values beside a curve change while the pointer moves; the charts stay in their place."""
    browser.show(files["one"], width=700)
    before = browser.js(SHAPE)
    browser.js(ZOOM + "fire('mouseenter', .5); fire('mousemove', .5);")
    assert browser.js("return document.querySelectorAll('.unit.now').length") > 0
    assert browser.js(SHAPE) == before


@pytest.mark.parametrize("how", ["mouse", "finger"])
def test_a_zoom_holds_for_all_charts_and_can_be_undone(
    how: str, files: dict[str, str], browser: Browser
) -> None:
    """Those that are unfolded later too; a button shows the whole run. Fingers zoom as mice do."""
    browser.show(files["one"])
    whole = browser.js(RANGE, "#charts")
    assert len(set(whole)) == 1
    if how == "finger":
        browser.js(SWIPE)
    else:
        over = browser.driver.find_element("css selector", ".plot .u-over")
        drag_over(browser, over)
    wait_for(browser, "return !document.getElementById('zoom-out').hidden")
    zoomed = browser.js(RANGE, "#charts")
    assert len(set(zoomed)) == 1
    assert zoomed[0] != whole[0]
    browser.js("document.getElementById('more').open = true")
    wait_for(browser, "return document.querySelectorAll('#minor .plot').length > 0")
    assert set(browser.js(RANGE, "#minor")) == set(zoomed)
    browser.driver.find_element("id", "zoom-out").click()
    wait_for(browser, "return document.getElementById('zoom-out').hidden")
    assert set(browser.js(RANGE, "")) == set(whole)


def test_a_name_in_the_legend_hides_its_curve(files: dict[str, str], browser: Browser) -> None:
    """Its button says so, keeps the focus, and brings it back; also by keyboard."""
    from selenium.webdriver.common.keys import Keys

    browser.show(files["one"])
    pressed = "return document.querySelector('.chart .key').getAttribute('aria-pressed')"
    assert browser.js(pressed) == "true"
    browser.driver.find_element("css selector", ".chart .key").send_keys(Keys.ENTER)
    assert browser.js(pressed) == "false"
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.js(pressed) == "true"


def test_a_chart_is_saved_as_csv_and_as_picture(files: dict[str, str], browser: Browser) -> None:
    """Both are made in the page: a row per time, and a PNG with title and legend."""
    browser.show(files["one"])
    browser.js(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () {"
        " window.saved.push([this.download, this.href]); };"
        "const buttons = [...document.querySelectorAll('.chart .as-table')];"
        "for (const one of buttons.slice(1, 3)) one.click();"
    )
    (csv, table), (png, picture) = browser.js("return window.saved")
    assert csv.endswith(".csv")
    assert table.startswith("data:text/csv")
    assert table.count("%0A") == 301
    assert png.endswith(".png")
    assert picture.startswith("data:image/png;base64,")


def test_a_saved_table_holds_no_formula(files: dict[str, str], browser: Browser) -> None:
    """A name that a spreadsheet would run gets a quote before it; a negative number stays."""
    browser.show(files["one"])
    saved = browser.js(
        "let saved; HTMLAnchorElement.prototype.click = function () { saved = this.href; };"
        "const cells = document.getElementById('operations').rows[1].cells;"
        "cells[0].dataset.v = '=HYPERLINK(1)'; cells[1].dataset.v = '-1.5';"
        "document.querySelector('[data-csv=operations]').click();"
        "return decodeURIComponent(saved);"
    )
    assert "\n'=HYPERLINK(1),-1.5," in saved


def test_compared_runs_are_aligned_by_phase(files: dict[str, str], browser: Browser) -> None:
    """Each run has its curve; aligned by phase, both end where the baseline ends."""
    browser.show(files["comparison"])
    assert "1.3 × faster: train 600 → 480 s" in browser.js("return document.body.innerText")
    assert browser.js("return document.querySelector('.chart .keys').children.length") == 2
    ends = (
        "document.querySelector('.chart .as-table').click();"
        "const rows = [...document.querySelectorAll('.chart tbody tr')];"
        "const last = k => rows.findLastIndex(r => r.cells[k].textContent !== '–') / rows.length;"
        "return [last(1), last(2)];"
    )
    first, second = browser.js(ends)
    assert first > 0.95
    assert second < 0.6
    browser.js(
        "const a = document.getElementById('align'); a.value = 'phase';"
        "a.dispatchEvent(new Event('change'));"
    )
    first, second = browser.js(ends)
    assert min(first, second) > 0.95


def test_tables_sort(files: dict[str, str], browser: Browser) -> None:
    """A click on a heading sorts by the figures, not by their texts, and says so."""
    browser.show(files["one"])
    heads = browser.driver.find_elements("css selector", "table.sortable th button")
    next(h for h in heads if h.text == "Count").click()
    counts = browser.js(
        "return [...document.querySelectorAll('table.sortable tbody tr')]"
        ".map(r => +r.cells[1].dataset.v)"
    )
    assert counts == sorted(counts, reverse=True)
    assert browser.js("return !!document.querySelector('th[aria-sort=descending]')")


def test_hostile_names_stay_text(tmp_path: Path, browser: Browser) -> None:
    """Markup in a name is shown and not run, everywhere on the page."""
    (tmp_path / "page.html").write_text(render(samples.hostile_document()), encoding="utf-8")
    browser.show((tmp_path / "page.html").as_uri())
    assert browser.js("return document.querySelectorAll('main img, header img').length") == 0
    assert browser.messages() == []
    assert samples.HOSTILE in browser.js("return document.querySelector('h1').textContent")
    wait_for(browser, "return document.querySelectorAll('#charts canvas').length >= 3")


@pytest.mark.slow
def test_a_thousand_nodes(tmp_path: Path, browser: Browser) -> None:
    """A thousand nodes make a page of less than 2 MB with a heat map per curve, and it opens."""
    import copy

    few = [samples.node(i, count=1000, rows=240) for i in range(4)]

    def nodes() -> Iterator[NodeDocument]:
        for index in range(1000):
            one = copy.copy(few[index % 4])
            one.node = {**one.node, "index": index}
            yield one

    page = render(nodes())
    assert len(page.encode()) < 2_000_000
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    browser.show((tmp_path / "page.html").as_uri())
    assert browser.messages() == []
    assert browser.js("return document.querySelectorAll('.heat canvas').length") >= 8
    assert (
        browser.js("return document.querySelectorAll('table.sortable tbody')[0].rows.length")
        == 1000
    )
    over = browser.driver.find_element("css selector", ".heat .u-over")
    over.click()
    chosen = browser.js("return document.getElementById('node').value")
    assert 0 <= int(chosen) < 1000
