"""What killed processes leave beside their journals, and who removes it: a pass of recovery."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import DocumentError
from mlflow_perf.publish.group_journal import remove_left_over_notes
from mlflow_perf.publish.journal import BEGUN, SUFFIX, live
from mlflow_perf.publish.journal_file import is_same_file, lock, open_journal
from mlflow_perf.recorders.spool_folder import remove_dead_ranks
from mlflow_perf.recorders.spool_places import list_places, remove_left_over

_BEGUN_SEC = 60.0  # no live process still writes a `.new` file that is older

_log = get_logger(__name__)


def remove_begun(place: Path) -> None:
    """Remove what processes wrote that died while they replaced their journals.

    The journal itself is complete then. A live process replaces it within milliseconds.

    Args:
        place: The folder of the journals.
    """
    for path in place.glob(f"*{BEGUN}"):
        if path.with_suffix(SUFFIX).name in live:
            continue
        try:
            with open_journal(path) as handle:
                is_old = time.time() - os.fstat(handle).st_mtime > _BEGUN_SEC
                if is_old and lock(handle) and is_same_file(path, handle):
                    path.unlink(missing_ok=True)
        except (DocumentError, OSError) as error:
            _log.debug("%s is left there: %s", path, error)


def remove_what_is_left(place: Path) -> None:
    """Remove what no journal needs any more after it was sent.

    Args:
        place: The folder of the journals.
    """
    for one in list_places(place):
        remove_left_over(one)
    remove_dead_ranks()
    remove_left_over_notes(place)
