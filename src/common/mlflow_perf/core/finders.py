"""Finders of ours in `sys.meta_path`, beside imports that go on in other threads.

An import goes through that list itself. Where one is removed from it meanwhile, the import passes
over the next, and does not find a module that is there. So the list is replaced by another one.
"""

from __future__ import annotations

import sys


def remove_finder(finder: object) -> None:
    """Take a finder out, wherever it is by now; nothing happens where it is gone."""
    listed = sys.meta_path
    seen = listed.copy()
    sys.meta_path = [one for one in seen if one is not finder]
    if listed != seen:  # another thread has added one
        sys.meta_path = [one for one in listed if one is not finder]
