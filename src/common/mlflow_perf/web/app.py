"""Adds the page to MLflow's server; the only module that knows how MLflow builds its apps."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from itertools import product
from typing import Any

from flask import Flask, has_request_context, request

from mlflow_perf.web import pages
from mlflow_perf.web.access import SIGNED_IN
from mlflow_perf.web.static_prefix import read_static_prefix

# Private to MLflow: `mlflow server` sets it for its workers.
_SERVER_KIND = "_MLFLOW_SGI_NAME"

_BASIC_AUTH_SETTINGS = ("MLFLOW_AUTH_CONFIG_PATH", "MLFLOW_FLASK_SERVER_SECRET_KEY")


def create_app(*, basic_auth: bool | None = None) -> Any:
    """Return the app for the server: ASGI for uvicorn, WSGI for the others.

    Args:
        basic_auth: Whether users must sign in, with MLflow's basic-auth app. Default: if a setting
            of it is in the environment, so that this app never leaves a closed server open.
    """
    from mlflow.server import app as flask_app

    paths = register(flask_app)
    if basic_auth is None:
        basic_auth = any(os.environ.get(name) for name in _BASIC_AUTH_SETTINGS)
    if basic_auth:
        return _with_basic_auth(flask_app, paths)
    if os.environ.get(_SERVER_KIND) == "uvicorn":
        from mlflow.server.fastapi_app import create_fastapi_app

        return create_fastapi_app(flask_app)
    return flask_app


def register(app: Flask) -> list[str]:
    """Add the page's routes to MLflow's app and return their paths; a second call adds none."""
    paths = []
    for path, view in pages.ROUTES.items():
        rule = f"{read_static_prefix()}{path}"
        paths.append(rule)
        endpoint = f"mlflow_perf.{view.__name__}"
        if endpoint not in app.view_functions:
            app.add_url_rule(rule, endpoint, view, methods=["GET"], strict_slashes=False)
    return paths


def _with_basic_auth(app: Flask, paths: list[str]) -> Any:
    from mlflow.server import auth

    # MLflow denies a path without a validator to everyone but administrators. Every user who signed
    # in may open our paths, because their content comes from MLflow's own routes.
    validators: dict[tuple[str, str], Callable[[], bool]] = auth.BEFORE_REQUEST_VALIDATORS
    for path, method in product(paths, ("GET", "HEAD")):
        validators[(path, method)] = lambda: True
    check_passwords_once(auth.store)
    return auth.create_app(app)


def check_passwords_once(store: Any) -> None:
    """Let MLflow check a password once for a page: each check takes 0.1 s of CPU, by design.

    A page asks MLflow's own routes some hundred times, each time as the same user. What the user
    may read is checked each time.
    """
    check = store.authenticate_user

    @functools.wraps(check)
    def authenticate_user(username: str, password: str, *args: Any, **options: Any) -> bool:
        known = request.environ.get(SIGNED_IN) if has_request_context() else None
        if known is not None and (username, password) in known:
            return True
        is_right = bool(check(username, password, *args, **options))
        if known is not None and is_right:
            known.add((username, password))
        return is_right

    store.authenticate_user = authenticate_user
