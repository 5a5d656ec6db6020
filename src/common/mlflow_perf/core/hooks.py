"""Functions of higher modules that lower ones call; the package's `__init__` sets them.

A document or a comparison draws itself in a notebook, but its module must not import the reports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hooks:
    """The functions that a higher step provides.

    Attributes:
        plot: Takes a `PerfDocument` and options, returns a matplotlib figure.
        notebook_html: Takes a document, comparison, workflow or suggestion of a size, and returns
            its page for a notebook.
    """

    plot: Callable[..., Any]
    notebook_html: Callable[[Any], str]


hooks = Hooks()
"""The hooks of this process."""
