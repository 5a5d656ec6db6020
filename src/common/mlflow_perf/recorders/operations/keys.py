"""Names and keys of operations: their checks, their comparable form and their JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mlflow_perf.errors import SettingError

_MAX_TEXT = 1000
_SCALARS = (str, int, float, bool, type(None))
_PLAIN = frozenset(_SCALARS)
# Where a ProxyStore proxy has its factory: from 0.6.4 on, and before.
_FACTORIES = ("__proxy_factory__", "__factory__")


def check_name(name: object) -> None:
    """Check that this can be the name of an operation.

    Raises:
        SettingError: If it is not a string, or an empty one.
    """
    if not isinstance(name, str) or not name:
        raise SettingError(
            f"The name of an operation is {name!r}: give a string that is not empty."
        )


def plain_key(key: Any) -> Any:
    """Return a key's comparable form: a list as a tuple, a ProxyStore proxy as its object's key.

    Raises:
        SettingError: If the key cannot be hashed.
    """
    # The usual keys first, at once: this is on the path of every record.
    if type(key) in _PLAIN or (type(key) is tuple and _PLAIN.issuperset(map(type, key))):
        return key
    # Anything asked of a proxy, even isinstance, would fetch its object; its factory has the key.
    for factory in _FACTORIES:
        if hasattr(type(key), factory):
            return getattr(object.__getattribute__(key, factory), "key", None)
    if isinstance(key, (list, tuple)):
        key = tuple(part if type(part) is list else plain_key(part) for part in key)
    elif isinstance(key, Sequence) and not isinstance(key, (str, bytes)):
        key = tuple(key)
    try:
        hash(key)
    except TypeError as error:
        raise SettingError(
            f"A key of type {type(key).__name__} cannot be hashed: give a string, a number, a "
            "tuple of them, or a list of keys."
        ) from error
    return key


def json_key(key: Any) -> Any:
    """Return a key for JSON: scalars unchanged, tuples as `{"all": […]}`, the rest as text."""
    if isinstance(key, tuple):
        return {"all": [json_key(part) for part in key]}
    if type(key) in _SCALARS and (type(key) is not float or math.isfinite(key)):
        return hide_secrets(key) if type(key) is str else key
    return hide_secrets(as_text(key))


def unjson_key(key: Any) -> Any:
    """Return the key that `json_key` wrote.

    Raises:
        ValueError: If it is something else.
    """
    if isinstance(key, dict):
        return tuple(unjson_key(part) for part in key["all"])
    if type(key) not in _SCALARS:
        raise ValueError(f"{key!r} is not a key")
    return key


def hide_secrets(text: str) -> str:
    """Return a name without the passwords and queries of the addresses in it.

    A query may be a signature, which also makes a new name of each call.
    """
    if "://" not in text:
        return text
    # Late: a worker process that only records does not need it.
    from mlflow_perf.core.uris import redact_address

    return redact_address(text)


def as_text(value: Any) -> str:
    """Return `str(value)`, cut to 1,000 characters; the type's name if `str` fails."""
    try:
        return str(value)[:_MAX_TEXT]
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything; the job must not see it
        return f"<{type(value).__name__}>"
