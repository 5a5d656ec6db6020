"""Coverage-guided fuzzing of everything that reads what others wrote; run by hand.

    $ pip install atheris
    $ python -m tests.fuzz.run document 600        # a target and seconds; without: the list

A loader may give something or raise one of our own errors with a message of one line; anything
else, and an input that takes long, is a finding. It is printed once per place, its input is kept
as `finding-…`, and fuzzing goes on; it becomes an ordinary test beside the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

SLOW_SEC = 3.0
"""More than any input of 64 KiB may take, instrumented and on a busy machine."""
_MEMORY_MB = 2048


class Watched:
    """Runs a target, and tells of each finding once.

    Args:
        run: The target.
        allowed: What it may raise.
    """

    def __init__(self, run: Callable[[bytes], object], allowed: type[Exception]) -> None:
        self._run = run
        self._allowed = allowed
        self._seen: set[str] = set()

    def __call__(self, data: bytes) -> None:
        """Run the target on one input."""
        started = time.process_time()
        try:
            self._run(data)
        except self._allowed as error:
            if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,2100}", str(error)):
                self._tell(f"message at {_place(error)}", data, repr(str(error))[:2000])
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
            where = f"{type(error).__name__} at {_place(error)}"
            self._tell(where, data, traceback.format_exc()[-3000:])
        took = time.process_time() - started
        if took > SLOW_SEC:
            self._tell("slow", data, f"{took:.1f} s")

    def _tell(self, what: str, data: bytes, details: str) -> None:
        if what in self._seen:
            return
        self._seen.add(what)
        kept = Path(f"finding-{hashlib.sha256(data).hexdigest()[:12]}")
        kept.write_bytes(data)
        sys.stderr.write(f"FINDING {what} ({kept}): {details}\n")


def _place(error: Exception) -> str:
    """Return the last line of ours that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "mlflow_perf" in frame.filename] or frames
    return f"{ours[-1].filename}:{ours[-1].lineno}"


def main() -> None:
    """Fuzz one target for so many seconds, or run it on files."""
    import atheris

    logging.disable()
    with atheris.instrument_imports(include=["mlflow_perf"]):
        from tests.fuzz.targets import TARGETS

        from mlflow_perf.errors import MlflowPerfError

        if len(sys.argv) < 3 or sys.argv[1] not in TARGETS:
            sys.exit(f"usage: python -m tests.fuzz.run TARGET SECONDS|FILE…; {', '.join(TARGETS)}")
        target = TARGETS[sys.argv[1]]()
    watched = Watched(target.run, MlflowPerfError)
    if not sys.argv[2].isdigit():
        for file in sys.argv[2:]:
            watched(Path(file).read_bytes())
        return
    corpus = Path(tempfile.mkdtemp())
    for number, seed in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(seed)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        # Each eighth change is of single bytes: the parsers have to be met too.
        if seed % 8 and target.mutator is not None:
            # What bytes changed before may be no JSON, no gzip and no database any more.
            with contextlib.suppress(Exception):
                return target.mutator(data, Random(seed))[:most]
        return bytes(atheris.Mutate(data, most))

    options = [f"-max_total_time={sys.argv[2]}", "-max_len=65536", "-print_final_stats=1"]
    limits = [f"-rss_limit_mb={_MEMORY_MB}", "-timeout=60"]
    mutator = {"custom_mutator": mutate} if target.mutator else {}
    atheris.Setup(["fuzz", str(corpus), *options, *limits], watched, **mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
