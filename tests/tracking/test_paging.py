"""Reading of an MLflow search to its end."""

from __future__ import annotations

from typing import Any

from mlflow_perf.tracking.paging import iterate_pages


class _Page(list[int]):
    def __init__(self, items: list[int], token: str | None) -> None:
        super().__init__(items)
        self.token = token


def test_pages_are_requested_as_they_are_used_up() -> None:
    """The next page is requested only after the last item of the previous one."""
    requests: list[tuple[Any, ...]] = []

    def search(*args: Any, max_results: int, page_token: str | None, order: str) -> _Page:
        requests.append((*args, max_results, page_token, order))
        return _Page([3], None) if page_token else _Page([1, 2], "more")

    found = iterate_pages(search, "experiment", max_results=2, order="newest")
    assert [next(found), next(found)] == [1, 2]
    assert requests == [("experiment", 2, None, "newest")]
    assert list(found) == [3]
    assert requests[1:] == [("experiment", 2, "more", "newest")]
