"""Run the benchmarks: `python -m benchmarks [NAME …] [--data FILE]`; all of them without a name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def main(arguments: list[str]) -> int:
    """Run each benchmark in a process of its own; return 1 if one failed, 2 for an unknown name.

    Args:
        arguments: Names of benchmarks, then options that each of them gets.
    """
    count = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    names = arguments[:count]
    # The benchmarks run in the project's folder, and files are named from the caller's.
    options = [str(Path(o).absolute()) if Path(o).exists() else o for o in arguments[count:]]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"There is no benchmark {unknown[0]!r}; there are: {', '.join(NAMES)}.")
        return 2
    worst = 0
    for name in names or NAMES:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        worst = max(worst, subprocess.run(command, cwd=ROOT, check=False).returncode)
    return min(worst, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
