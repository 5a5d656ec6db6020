"""The arguments that all components share; this module is uploaded with each of them."""

from __future__ import annotations

import argparse
import json
import logging
from typing import Any


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser that already knows the common arguments."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--verbose", type=_boolean, default=False, help="log more")
    made.add_argument(
        "--custom-properties", type=_properties, default={}, help="tags as a JSON object"
    )
    return made


def apply_common(args: argparse.Namespace, perf: Any) -> None:
    """Set the log's level and tag the run with the custom properties.

    Args:
        args: Arguments of a parser made above.
        perf: The session of `with mlflow_perf.report(…) as perf`.
    """
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.INFO)
    for key, value in args.custom_properties.items():
        perf.add_attribute(key, value)
    log_to_run(perf, tags={key: str(value) for key, value in args.custom_properties.items()})


def log_to_run(
    perf: Any, *, tags: dict[str, str] | None = None, metrics: dict[str, float] | None = None
) -> None:
    """Log figures other than performance, such as the model's quality, to the component's run."""
    if not (tags or metrics) or perf.run_id is None:
        return
    from mlflow import MlflowClient

    client = MlflowClient()
    for key, text in (tags or {}).items():
        client.set_tag(perf.run_id, key, text)
    for key, value in (metrics or {}).items():
        client.log_metric(perf.run_id, key, value)


def _boolean(text: str) -> bool:
    """Return a boolean from text, as Azure ML writes it (True) or as a person does (true, 1)."""
    return text.strip().lower() in ("true", "1", "yes")


def _properties(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} must be a JSON object")
    return value
