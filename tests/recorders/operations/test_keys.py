"""Rules of names and keys: what they may be, and that keys survive JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.errors import SettingError
from mlflow_perf.recorders.operations.keys import (
    as_text,
    check_name,
    json_key,
    plain_key,
    unjson_key,
)

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple))


@given(keys)
def test_keys_survive_json(key: Any) -> None:
    """A scalar or a tuple of them is the same after JSON; other floats become text."""
    again = unjson_key(json.loads(json.dumps(json_key(key), allow_nan=False)))
    if "inf" not in repr(key):
        assert again == key


class _Factory:
    key = "the key"

    def __call__(self) -> str:
        raise AssertionError("resolved")


def _make_old_proxy() -> Any:
    """Return a proxy of ProxyStore up to 0.6.3, which every attribute access resolves."""
    class_ = type(
        "Proxy",
        (),
        {
            "__slots__": ("__factory__",),
            "__class__": property(lambda self: object.__getattribute__(self, "__factory__")()),
            "__hash__": lambda self: object.__getattribute__(self, "__factory__")(),
        },
    )
    proxy: Any = object.__new__(class_)
    object.__setattr__(proxy, "__factory__", _Factory())
    return proxy


def _make_real_proxy() -> Any:
    """Return a proxy of the installed ProxyStore."""
    return pytest.importorskip("proxystore.proxy").Proxy(_Factory())


@pytest.mark.parametrize("make", [_make_old_proxy, _make_real_proxy])
def test_a_proxy_is_not_resolved(make: Callable[[], Any]) -> None:
    """The key of a proxy is that of its object, alone and anywhere within a list of keys."""
    assert plain_key(make()) == "the key"
    assert plain_key([make(), "k"]) == ("the key", "k")
    assert plain_key([1, (make(), (make(),))]) == (1, ("the key", ("the key",)))


@pytest.mark.parametrize("wrong", [[1], 1.5 + 2j, b"x"])
def test_other_values_are_no_keys(wrong: object) -> None:
    """JSON that `json_key` did not write raises ValueError."""
    with pytest.raises(ValueError, match="not a key"):
        unjson_key(wrong)


def test_a_value_that_is_no_text_is_its_type() -> None:
    """A long text is cut, and the type's name replaces a text that cannot be made."""

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    assert as_text(Broken()) == "<Broken>"
    assert len(as_text("x" * 5000)) == 1000
    assert json_key(math.nan) == "nan"


@pytest.mark.parametrize("wrong", ["", None, 3])
def test_a_name_is_a_text_that_is_not_empty(wrong: object) -> None:
    """Any other name raises SettingError and is named in the message."""
    with pytest.raises(SettingError, match=repr(wrong)):
        check_name(wrong)
