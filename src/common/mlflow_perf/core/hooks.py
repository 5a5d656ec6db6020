"""Calls from a lower step of the ladder to a higher one, which the package's `__init__` fills in.

A `PerfDocument` draws itself in a notebook, but the document must not know the reports. It calls
these hooks instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Hooks", "hooks"]


class Hooks:
    """The functions that a higher step provides.

    Attributes:
        plot: Takes a `PerfDocument` and options, returns a matplotlib figure.
        notebook_html: Takes a `PerfDocument`, returns its report for a notebook.
    """

    plot: Callable[..., Any]
    notebook_html: Callable[[Any], str]


hooks = Hooks()
"""The hooks of this process."""
