"""JSON of plain data in a recording's files, also while the job has `json`'s functions mocked."""

from __future__ import annotations

from json import JSONDecoder, JSONEncoder
from typing import Any

_encode = JSONEncoder(allow_nan=False).encode
_decode = JSONDecoder().decode


def dumps(data: Any) -> str:
    """Return data as strict JSON.

    Raises:
        TypeError: When it holds something that is not plain data.
        ValueError: When it holds NaN or infinity.
    """
    return _encode(data)


def loads(text: str | bytes) -> Any:
    """Return the data in a JSON text.

    Raises:
        ValueError: When it is not JSON.
        RecursionError: When it is nested too deeply.
    """
    return _decode(text if isinstance(text, str) else text.decode())
