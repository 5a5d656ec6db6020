"""Takes the pictures of README and docs: `python -m tools.pictures.take WORK`.

WORK gets an MLflow store with two runs of the pipeline in `flow.py`, unless it has one already, and
the pictures are of its pages. Two quiet cores and Chromium are needed; each run takes 2 minutes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
from tests.reports.html_browser import Browser, open_browser, wait_for
from tests.web.web_store import Filled, server

_HERE = Path(__file__).parent
_IMAGES = _HERE.parents[1] / "docs" / "images"
_HIDE_PATHS = (
    "for (const one of document.querySelectorAll('.params > span'))"
    "  if (one.textContent.includes('/')) one.remove();"
)
_KEEP_PART = (
    "const kept = document.querySelector(arguments[0]).closest('section');"
    "for (const one of document.querySelectorAll('nav, header, main > *'))"
    "  if (one !== kept) one.remove();"
)
_SETTINGS = (("leaves=31", "parser=iso"), ("leaves=255", "parser=strptime"))


def run_pipeline(work: Path) -> None:
    """Run the pipeline twice: before and after a change for the worse."""
    for settings in _SETTINGS:
        chosen = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "mlflow_perf", "pipeline", "run", str(_HERE / "flow.py")]
        subprocess.run([*command, "--to", str(work), *chosen], check=True, cwd=work)


def find_runs(address: str) -> dict[str, list[str]]:
    """Return the ids of the runs by name, the oldest first."""
    mlflow.set_tracking_uri(address)
    found: dict[str, list[str]] = {}
    runs: Any = mlflow.search_runs(search_all_experiments=True, output_format="list",
                                   order_by=["attributes.start_time ASC"])  # fmt: skip
    for run in runs:
        found.setdefault(run.info.run_name, []).append(run.info.run_id)
    return found


def take(
    browser: Browser, url: str, name: str, *, width: int, until: str = "", part: str = ""
) -> None:
    """Save a page as a picture, or a part of it.

    Args:
        browser: The browser.
        url: The page.
        name: File in docs/images.
        width: Of the window, in pixels.
        until: Selector of the element above which the picture ends; default: the footer.
        part: Selector of the only section that is shown; default: all of them.
    """
    browser.show(url, width=width, height=900)
    wait_for(browser, "return document.readyState == 'complete'")
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top + window.scrollY"
    if part:
        browser.js(_KEEP_PART, part)
    height = int(browser.js(top, until or "footer"))
    browser.show(url, width=width, height=height)
    wait_for(browser, "return document.readyState == 'complete'")
    if part:
        browser.js(_KEEP_PART, part)
    # The docs show no paths of the machine that they are made on.
    browser.js(_HIDE_PATHS)
    browser.picture(_IMAGES / name)


def main(work: Path) -> None:
    """Take all pictures."""
    if not (work / "mlflow.db").exists():
        run_pipeline(work)
    profile = work / "chromium"
    store = Filled(f"sqlite:///{work}/mlflow.db", {}, {})
    files = ("--artifacts-destination", str(work / "artifacts"))
    with server(store, work, *files) as address, open_browser(profile) as browser:
        browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        runs = find_runs(address)
        flows, trains = runs["demand_forecast"], runs["train"]
        page = f"{address}/perf"
        take(browser, page, "perf-page.png", width=1540)
        take(browser, f"{page}/run?id={flows[1]}", "workflow.png", width=1340)
        take(
            browser,
            f"{page}/run?id={trains[1]}",
            "report.png",
            width=1200,
            until="#charts > :nth-child(5)",
        )
        take(browser, f"{page}/run?id={trains[1]}", "steps.png", width=900, part="#loop1")
        pair = f"run={flows[0]}&run={flows[1]}"
        take(browser, f"{page}/compare?{pair}", "comparison.png", width=1200, until="#curves-title")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
