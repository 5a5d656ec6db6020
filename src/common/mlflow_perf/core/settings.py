"""The settings of `report()`: one field each, from which everything else is derived.

A field's row in `SETTINGS` gives its environment variable, its validation and its line in the docs.
To add a setting, add a field: `report()` takes it as an argument at once.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mlflow_perf.core.uris import is_http, redact_password
from mlflow_perf.errors import SettingError

P = ParamSpec("P")
T = TypeVar("T")

_MAX_PREFIX = 100
_MAX_NAME_BYTES = 255  # the longest file name that a file system takes
_NOT_IN_PATHS = re.compile(r"[\\:*?\"<>|#%]")
_SPACE = re.compile(r"[\x00-\x20\x7f]")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def _number(low: float, high: float, *, whole: bool = False) -> Callable[[Any], float]:
    kind = "whole number" if whole else "number"
    at_most = "" if math.isinf(high) else f" and at most {high:g}"

    def parse(value: Any) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not (math.isfinite(number) and low <= number <= high) or (whole and number % 1):
            raise SettingError(f"must be a {kind} of at least {low:g}{at_most}")
        return int(number) if whole else number

    return parse


def _flag(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise SettingError("must be true or false")
    return text in _TRUE


def _rate(value: Any) -> float | None:
    """Return samples per second; None for the default rate, 0 for none."""
    text = str(value).strip().lower()
    if text in ("true", "yes", "on"):
        return None
    return 0.0 if text in _FALSE else _number(0, 1000)(value)


def _one_of(*names: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        text = str(value).strip().lower()
        if text not in names:
            raise SettingError(f"must be {' or '.join(map(repr, names))}")
        return text

    return parse


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
    # MLflow's keys have at most 250 characters. A longer prefix would make different keys equal.
    if not isinstance(value, str) or len(value) > _MAX_PREFIX:
        raise SettingError(f"must be a text of at most {_MAX_PREFIX} characters")
    return value


def _artifact_path(value: Any) -> str:
    parts = [part for part in _text(value).split("/") if part not in ("", ".")]
    # Some server, file system or URL cannot hold these names, or changes them.
    odd = not value.isprintable() or bool(_NOT_IN_PATHS.search(value))
    odd = odd or any(part == ".." or len(part.encode()) > _MAX_NAME_BYTES for part in parts)
    if odd or not parts:
        raise SettingError("must be a folder inside the run's artifacts, such as 'perf'")
    return "/".join(parts)


def _urls(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise SettingError("must be addresses: a list of texts, or one text")
    urls: list[str] = []
    for part in value.split(",") if isinstance(value, str) else value:
        # A comma separates addresses, and also the patterns in the fragment of an address.
        if isinstance(value, str) and urls and "#" in urls[-1] and "://" not in part:
            urls[-1] += f",{part}"
        else:
            urls.append(str(part))
    urls = [url.strip() for url in urls if url.strip()]
    for url in urls:
        try:
            parts = urllib.parse.urlsplit(url)
            valid = is_http(url) and parts.hostname and parts.port != 0 and not _SPACE.search(url)
        except ValueError:  # a port that is not a number, half a bracket
            valid = False
        if not valid:
            raise SettingError(
                f"must be http:// or https:// addresses; {redact_password(url)!r} is not"
            )
        if "@" in parts.netloc:
            raise SettingError("must be addresses without a user and a password")
    return tuple(urls)


def _textfile(value: Any) -> str:
    path = Path(_text(value))
    if path.suffix != ".prom" or not path.parent.is_dir():
        raise SettingError("must be a file that ends in .prom, in a folder that exists")
    return str(path)


def _setting(default: Any, parse: Callable[[Any], Any], meaning: str) -> Any:
    return field(default=default, metadata={"parse": parse, "meaning": meaning})


@dataclass(frozen=True)
class Settings:
    """The value of every setting of one recording.

    Each field is an argument of `report()` and has an environment variable, `MLFLOW_PERF_INTERVAL`
    for `interval` and so on. `load` returns the settings of a call.
    """

    # fmt: off
    name: str | None = _setting(None, _text, "Name of the component; default: the script's.")
    _: KW_ONLY
    interval: float = _setting(1.0, _number(0.05, 3600),
        "Seconds between two samples, 0.05 to 3600.")
    node: int | None = _setting(None, _number(0, 10**9, whole=True),
        "Index of this node; default: as the launcher says.")
    run_id: str | None = _setting(None, _text, "MLflow run to report to; default: see `report()`.")
    max_length: int = _setting(1000, _number(1, 10**7, whole=True),
        "Most reports that the document keeps; neighbours are merged beyond it.")
    artifact_path: str = _setting("perf", _artifact_path,
        "Folder of the JSON artifact in the run.")
    metrics_prefix: str = _setting("", _prefix,
        "Prefix of each metric's key, at most 100 characters; `fleet` and lists show no "
        "figures of runs with one.")
    metrics: str = _setting("default", _one_of("default", "all"),
        "Metrics to log to MLflow: the most important of a node, or `all`; the JSON has all.")
    quiet: bool = _setting(False, _flag,
        "Do not write the line with verdict, run and link to the standard error after a run.")
    live: bool = _setting(False, _flag, "Also log the curves while the job runs.")
    profile: float | None = _setting(None, _rate,
        "Stack samples per second, at most 1000; 0: none; default: 50, fewer in a long job.")
    profile_engine: str = _setting("own", _one_of("own", "py-spy", "python"),
        "Sampler of the stacks: a thread in each process, `py-spy` (extra `pyspy`), or `python`: "
        "the sampler that Python has from 3.15 on.")
    scrape: Sequence[str] = _setting((), _urls,
        "Prometheus endpoints to read during the job, comma-separated.")
    textfile: str | None = _setting(None, _textfile,
        "Also write the newest figures to this .prom file, for node_exporter.")
    opentelemetry: bool = _setting(False, _flag,
        "Also hand the newest figures to OpenTelemetry's SDK.")
    node_price: float | None = _setting(None, _number(0, math.inf),
        "Price of one node for one hour.")
    carbon: str | None = _setting(None, _country,
        "Country of the node, as FRA: estimate its emissions through CodeCarbon.")
    disable: bool = _setting(False, _flag, "Make `report()` do nothing.")
    start_timeout: float = _setting(10.0, _number(0, 3600),
        "Most seconds that the start waits for the tracking server, once MLflow is imported.")
    exit_timeout: float = _setting(30.0, _number(0, 3600),
        "Most seconds that the end waits for the tracking server.")
    dir: str | None = _setting(None, _text,
        "Folder of the crash-safe journals; default: the state folder.")
    # fmt: on

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, /, **given: object) -> Settings:
        """Return the settings: each from its argument, else its variable, else its default.

        Args:
            environ: The environment variables; default: those of the process.
            given: Arguments by the names of their fields; None where the caller gave none.

        Raises:
            SettingError: When an argument or a variable has a value that cannot be used.
        """
        return cls(**{name: read_setting(name, given.get(name), environ) for name in SETTINGS})


@dataclass(frozen=True)
class Setting:
    """What is known of one setting besides its value.

    Attributes:
        name: Field of `Settings`, and argument of `report()`.
        variable: Name of the environment variable.
        default: Value without argument and variable.
        parse: Returns the value of a text or an argument; raises `SettingError`.
        meaning: One sentence for the documentation.
    """

    name: str
    variable: str
    default: Any
    parse: Callable[[Any], Any]
    meaning: str


SETTINGS: Mapping[str, Setting] = {
    f.name: Setting(f.name, f"MLFLOW_PERF_{f.name.upper()}", f.default, **f.metadata)
    for f in fields(Settings)
}
"""Name of a setting → its facts, in the order of the fields."""


def read_setting(name: str, given: object = None, environ: Mapping[str, str] | None = None) -> Any:
    """Return the value of one setting.

    Args:
        name: Name of its field in `Settings`.
        given: The argument; None where the caller gave none.
        environ: The environment variables; default: those of the process.

    Raises:
        SettingError: When the argument or the variable has a value that cannot be used.
    """
    setting = SETTINGS[name]
    source, value = name, given
    if value is None:
        source = setting.variable
        value = (os.environ if environ is None else environ).get(source)
        if value is None or not value.strip():
            return setting.default
    try:
        return setting.parse(value)
    except SettingError as error:
        raise SettingError(f"{source} is {redact_password(repr(value))}; it {error}.") from None


def arguments_of(
    settings: Callable[P, Settings],
) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Return a decorator that gives a function of `**given` the arguments of `Settings`.

    Args:
        settings: The class `Settings`. Type checkers and `help()` take the signature from it.
    """
    signature = inspect.signature(settings)
    names = signature.parameters.keys()
    first = next(iter(names))  # the only one that may come without its name
    others = names - {first}

    def decorate(function: Callable[..., T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            # `bind` checks the same in 20 µs; it is used only for its error message.
            if len(args) <= 1 and kwargs.keys() <= (others if args else names):
                return function(**kwargs, **({first: args[0]} if args else {}))
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(**given)

        call.__signature__ = signature.replace(  # type: ignore[attr-defined]  # read by inspect
            return_annotation=inspect.signature(function).return_annotation
        )
        return call

    return decorate
