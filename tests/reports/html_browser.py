"""A headless Chromium for the tests of the pages: notes requests and console messages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

AXE_VERSION = "4.14.1"
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
)
_AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


class Browser:
    """One window of Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def show(
        self, url: str, *, width: int = 1300, height: int = 900, dark: bool = False
    ) -> Browser:
        """Open a page in a window of this size; what was noted before is forgotten."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        self.driver.get(url)
        return self

    def js(self, script: str, *arguments: Any) -> Any:
        """Return what a script returns."""
        return self.driver.execute_script(script, *arguments)

    def messages(self) -> list[str]:
        """Return the errors and warnings on the console."""
        return [m["message"] for m in self.driver.get_log("browser") if m["level"] != "INFO"]

    def hosts(self) -> set[str]:
        """Return the hosts that the page asked for anything."""
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlparse(message["params"]["request"]["url"])
                hosts.add(url.hostname or "")
        return hosts - {""}

    def violations(self, axe: str) -> list[str]:
        """Return what axe finds wrong: the rule and the first elements of each."""
        self.js(axe)
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {runOnly: arguments[0]}).then(r => done(r.violations.map("
            "v => v.id + ': ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 120)).join(' | '))));",
            _AXE_RULES,
        )
        return list(found)

    def picture(self, path: Path) -> None:
        """Save what the window shows, for people to look at."""
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(shot["data"]))


def wait_for(browser: Browser, script: str, *, timeout_sec: float = 30) -> None:
    """Wait until a script returns true; fail after `timeout_sec`."""
    from selenium.common.exceptions import JavascriptException
    from selenium.webdriver.support.ui import WebDriverWait

    # While a page is loading there may be no document to ask.
    ignored = (JavascriptException,)
    wait = WebDriverWait(browser.driver, timeout_sec, 0.1, ignored_exceptions=ignored)
    wait.until(lambda driver: driver.execute_script(script))


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with a profile of its own; skip where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    chromium = next((found for name in _CHROMIUM if (found := shutil.which(name))), None)
    driver_path = shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        pytest.skip("Chromium and its driver are not installed (Debian: chromium-driver).")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def axe_source(folder: Path) -> str:
    """Return axe-core's source, from this user's cache or through npm; skip without either."""
    return npm_file(folder, f"axe-core@{AXE_VERSION}", "axe.min.js")


def npm_file(folder: Path, package: str, member: str) -> str:
    """Return a file of a package, from this user's cache or through npm; skip without either.

    Args:
        folder: Folder for the package.
        package: Its name and version, as `axe-core@4.14.1`.
        member: The file's path in the package.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlflow-perf-tests"
    kept = cache / f"{package}-{Path(member).name}"
    if kept.exists():
        return kept.read_text(encoding="utf-8")
    if shutil.which("npm") is None:
        pytest.skip(f"There is no npm to get {package} with.")
    command = ["npm", "pack", "--silent", package, f"--pack-destination={folder}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=folder)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"npm could not get {package}: {error}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        content = archive.extractfile(f"package/{member}")
        assert content is not None
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(content.read())
    return kept.read_text(encoding="utf-8")
