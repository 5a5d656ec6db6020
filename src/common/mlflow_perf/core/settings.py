"""Every setting of `report()`: its argument, its environment variable, its range.

A setting comes from the argument, else from the environment, else from the table's default; a wrong
one is a `SettingError` before the job starts. Imports addresses and errors.
"""

from __future__ import annotations

import math
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow_perf.core.uris import is_http, redact_password
from mlflow_perf.errors import SettingError

__all__ = ["ENVIRONMENT", "Setting", "is_disabled", "resolve", "setting"]

_LONGEST_PREFIX = 100
_NOT_IN_PATHS = re.compile(r"[\\:*?\"<>|#%]")
_SPACE = re.compile(r"[\x00-\x20\x7f]")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: Argument of `report()`, or the part after `MLFLOW_PERF_` in lower case.
        default: Value where neither argument nor environment gives one.
        parse: From the environment's text, or the argument, to the value; raises `ValueError`.
        meaning: One sentence for the documentation.
    """

    name: str
    default: Any
    parse: Callable[[Any], Any]
    meaning: str

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"MLFLOW_PERF_{self.name.upper()}"


def _number(low: float, high: float, *, whole: bool = False) -> Callable[[Any], float]:
    kind = "whole number" if whole else "number"

    def parse(value: Any) -> float:
        try:
            if isinstance(value, bool):
                raise ValueError  # noqa: TRY004 - caught below, with the message for all
            number = float(value)
            fits = (
                low <= number <= high
                and math.isfinite(number)
                and not (whole and number != int(number))
            )
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            most = "" if math.isinf(high) else f" and at most {high:g}"
            raise SettingError(f"must be a {kind} of at least {low:g}{most}")
        return int(number) if whole else number

    return parse


def _flag(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise SettingError("must be true or false")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingError("must be a text that is not empty")
    return value


def _country(value: Any) -> str:
    text = str(value).strip().upper()
    if len(text) != 3 or not (text.isascii() and text.isalpha()):
        raise SettingError("must be the three letters of a country, such as 'FRA' (ISO 3166)")
    return text


def _prefix(value: Any) -> str:
    # Keys have 250 characters at most: what is beyond them is cut, and cut keys fall together.
    if not isinstance(value, str) or len(value) > _LONGEST_PREFIX:
        raise SettingError(f"must be a text of at most {_LONGEST_PREFIX} characters")
    return value


_NAME_MAX = 255  # bytes: the longest name that a file system takes


def _artifact_path(value: Any) -> str:
    parts = [part for part in _text(value).split("/") if part not in ("", ".")]
    # What is left out here some server, file system or address cannot hold, or changes.
    odd = not value.isprintable() or bool(_NOT_IN_PATHS.search(value))
    odd = odd or any(part == ".." or len(part.encode()) > _NAME_MAX for part in parts)
    if odd or not parts:
        raise SettingError("must be a folder inside the run's artifacts, such as 'perf'")
    return "/".join(parts)


def _urls(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise SettingError("must be addresses: a list of texts, or one text")
    urls = _addresses_in(value) if isinstance(value, str) else list(value)
    urls = [str(url).strip() for url in urls if str(url).strip()]
    for url in urls:
        _check_url(url)
    return tuple(urls)


def _addresses_in(text: str) -> list[str]:
    """Return the addresses between commas; those in a fragment stand between its patterns."""
    found: list[str] = []
    for part in text.split(","):
        if found and "#" in found[-1] and "://" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _check_url(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        whole = is_http(url) and parts.hostname and parts.port != 0 and not _SPACE.search(url)
    except ValueError:  # a port that is no number, half a bracket
        whole = False
    if not whole:
        raise SettingError(
            f"must be http:// or https:// addresses; {redact_password(url)!r} is not"
        )
    if "@" in parts.netloc:
        raise SettingError("must be addresses without a user and a password")


def _textfile(value: Any) -> str:
    path = Path(_text(value))
    if path.suffix != ".prom" or not path.parent.is_dir():
        raise SettingError("must be a file that ends in .prom, in a folder that exists")
    return str(path)


# fmt: off
_TABLE = (
    Setting("name", None, _text, "Name of the component; default: the script's."),
    Setting("interval", 1.0, _number(0.05, 3600), "Seconds between two samples, 0.05 to 3600."),
    Setting("node", None, _number(0, 10**9, whole=True),
            "Index of this node; default: as the launcher says."),
    Setting("run_id", None, _text, "MLflow run to report to; default: see `report()`."),
    Setting("max_length", 1000, _number(1, 10**7, whole=True),
            "Most reports that the document keeps; neighbours are merged beyond it."),
    Setting("artifact_path", "perf", _artifact_path, "Folder of the JSON artifact in the run."),
    Setting("metrics_prefix", "", _prefix,
            "Put before each metric's key; at most 100 characters."),
    Setting("live", False, _flag, "Also log the curves while the job runs."),
    Setting("scrape", (), _urls, "Prometheus endpoints to read during the job, comma-separated."),
    Setting("textfile", None, _textfile,
            "Also write the newest figures to this .prom file, for node_exporter."),
    Setting("opentelemetry", False, _flag,
            "Also hand the newest figures to OpenTelemetry's SDK."),
    Setting("node_price", None, _number(0, math.inf), "Price of one node for one hour."),
    Setting("carbon", None, _country,
            "Country of the node, as FRA: estimate its emissions through CodeCarbon."),
    Setting("disable", False, _flag, "Make `report()` do nothing."),
    Setting("start_timeout", 10.0, _number(0, 3600),
            "Most seconds that the start waits for the tracking server."),
    Setting("exit_timeout", 30.0, _number(0, 3600),
            "Most seconds that the end waits for the tracking server."),
    Setting("dir", None, _text, "Folder of the crash-safe journals; default: the state folder."),
)
# fmt: on

ENVIRONMENT: dict[str, Setting] = {setting.name: setting for setting in _TABLE}
"""Setting name → its row in the table."""


def setting(name: str, given: Any = None, environ: Mapping[str, str] | None = None) -> Any:
    """Return the value of one setting.

    Args:
        name: Name in the table.
        given: The argument; None where the caller gave none.
        environ: The environment variables; default: the process's.

    Raises:
        SettingError: When the argument or the variable holds a value that cannot be used.
    """
    row = ENVIRONMENT[name]
    where, value = name, given
    if value is None:
        where, value = row.variable, (os.environ if environ is None else environ).get(row.variable)
    if value is None or (where == row.variable and not value.strip()):
        return row.default
    try:
        return row.parse(value)
    except SettingError as error:
        raise SettingError(f"{where} is {redact_password(repr(value))}; it {error}.") from None


def resolve(**given: Any) -> dict[str, Any]:
    """Return the value of every setting, with `setting` for each.

    Args:
        given: Arguments by their names in the table; None where the caller gave none.

    Raises:
        SettingError: As `setting`.
    """
    return {name: setting(name, given.get(name)) for name in ENVIRONMENT}


def is_disabled() -> bool:
    """Return whether `MLFLOW_PERF_DISABLE` is set.

    Raises:
        SettingError: When it is neither true nor false.
    """
    return bool(setting("disable"))
