"""Reads an MLflow search to its end, page after page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

PAGE = 1000
"""Runs or experiments per request to MLflow."""


def iterate_pages(
    search: Callable[..., Any], *args: Any, max_results: int = PAGE, **kwargs: Any
) -> Iterator[Any]:
    """Yield everything that a search finds; the next page is requested when one is used up.

    Args:
        search: A method of the client that returns a list with a `token`.
        args: Its positional arguments.
        max_results: Size of a page.
        kwargs: Its keyword arguments.
    """
    token = None
    while True:
        page = search(*args, **kwargs, max_results=max_results, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
