"""A search of MLflow's to its end, page after page. Imports nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["PAGE", "pages"]

PAGE = 1000
"""Runs or experiments that MLflow is asked for at a time."""


def pages(
    ask: Callable[..., Any], *what: Any, max_results: int = PAGE, **which: Any
) -> Iterator[Any]:
    """Yield all that a search finds, asking for a page when the one before is used up.

    Args:
        ask: A method of the client that gives a list with a `token`.
        what: Its positional arguments.
        max_results: Size of a page.
        which: Its other arguments.
    """
    token = None
    while True:
        page = ask(*what, **which, max_results=max_results, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
