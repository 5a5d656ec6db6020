"""The page as a part of MLflow's app."""

from __future__ import annotations

import re
from typing import Any

import pytest


def test_the_prefix_stands_in_every_address(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a static prefix no link leads outside of it."""
    from flask import Flask

    from mlflow_perf.web import app as web_app

    monkeypatch.setenv("_MLFLOW_STATIC_PREFIX", "/deep/er/")
    other = Flask("other")
    assert web_app.register(other) == [
        "/deep/er/perf",
        "/deep/er/perf/runs.csv",
        "/deep/er/perf/scatter",
        "/deep/er/perf/fleet",
        "/deep/er/perf/trend",
        "/deep/er/perf/run",
        "/deep/er/perf/compare",
    ]
    assert web_app.register(other)
    text = other.test_client().get("/deep/er/perf/run").text
    links = re.findall(r'(?:href|action)="([^"]+)"', text)
    assert links
    assert all(link.startswith(("/deep/er/", "data:")) for link in links)


def test_a_password_is_checked_once_for_a_page() -> None:
    """MLflow's check is slow by design; a wrong one, and one of another request, is checked."""
    from flask import Flask

    from mlflow_perf.web import app as web_app
    from mlflow_perf.web.access import SIGNED_IN

    asked: list[tuple[str, ...]] = []

    class Store:
        def authenticate_user(self, *user: str) -> bool:
            asked.append(user)
            return user[1] == "right"

    store, page = Store(), set[tuple[str, str]]()
    web_app.check_passwords_once(store)
    ann, eve = ("ann", "right"), ("eve", "wrong")
    for _ in range(2):
        with Flask("inner").test_request_context(environ_overrides={SIGNED_IN: page}):
            assert store.authenticate_user(*ann)
            assert not store.authenticate_user("ann", "wrong")
            assert not store.authenticate_user(*eve)
    assert asked == [ann, ("ann", "wrong"), eve, ("ann", "wrong"), eve]
    asked.clear()
    for _ in range(2):
        assert store.authenticate_user(*ann)
        with Flask("other").test_request_context(headers={"mlflow_perf.signed_in": "x"}):
            assert store.authenticate_user(*ann)
    assert asked == [ann] * 4


def test_the_entry_point_is_light() -> None:
    """Importing the plugin's module loads neither Flask nor MLflow nor the templates."""
    import subprocess
    import sys

    code = "import sys, mlflow_perf.web; print({'flask', 'mlflow', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_the_closed_app_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app with basic-auth asks for it, and so does the plain one where auth is set up."""
    import mlflow_perf.web as plugin
    from mlflow_perf.web import app as web_app

    monkeypatch.setattr(web_app, "_with_basic_auth", lambda app, paths: "closed")
    monkeypatch.delenv("_MLFLOW_SGI_NAME", raising=False)
    for name in ("MLFLOW_AUTH_CONFIG_PATH", "MLFLOW_FLASK_SERVER_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(web_app, "register", lambda app: ["/perf"])
    assert plugin.create_app_with_basic_auth() == "closed"
    assert plugin.create_app() != "closed"
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", "/some/file.ini")
    assert plugin.create_app() == "closed"
