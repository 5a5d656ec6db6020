"""Run the benchmarks: `python -m benchmarks [NAME …] [OPTION …]`; all of them without a name.

The options after the names are given to each of them; `python -m benchmarks NAME --help` lists
those of one benchmark.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}


def main(arguments: list[str]) -> int:
    """Run each benchmark in a process of its own; return 1 if one failed, 2 for an unknown name.

    Args:
        arguments: Names of benchmarks, then options that each of them gets.
    """
    count = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    names = arguments[:count]
    # The benchmarks run in the project's folder, and files are named from the caller's.
    options = [str(Path(o).absolute()) if Path(o).exists() else o for o in arguments[count:]]
    unknown = [name for name in names if name not in FILES]
    if unknown:
        message = f"There is no benchmark {unknown[0]!r}; there are: {', '.join(FILES)}."
        print(message, file=sys.stderr)
        return 2
    if {"-h", "--help"} & {*options} and not names:
        print_list()
        return 0
    worst = 0
    for name in names or FILES:
        print(f"== {name}", flush=True)
        if {"-h", "--help"} & {*options} and "argparse" not in FILES[name].read_text():
            print(read_about(name))
            continue
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        worst = max(worst, subprocess.run(command, cwd=ROOT, check=False).returncode)
    return min(worst, 1)


def print_list() -> None:
    """Print each benchmark's name and what it measures."""
    print(f"{__doc__}\nThe benchmarks:\n")
    for name in FILES:
        print(f"  {name:<12}{read_about(name).splitlines()[0]}")


def read_about(name: str) -> str:
    """Return what a benchmark measures and how it is run, without importing it."""
    return ast.get_docstring(ast.parse(FILES[name].read_text())) or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
