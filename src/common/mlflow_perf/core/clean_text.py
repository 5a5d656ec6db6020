"""Text of others on one line, without what acts on a terminal."""

from __future__ import annotations

import re

# Control characters, those that change the direction of the text around them, and lone surrogates,
# which cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def clean(text: object) -> str:
    """Return a text on one line with its control characters spelled out."""

    def spell(found: re.Match[str]) -> str:
        code = ord(found[0])
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _UNSAFE.sub(spell, str(text))
