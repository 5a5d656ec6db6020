"""Other people's measurements: named on the command line, never part of the project."""

from __future__ import annotations

import argparse
import csv
import gzip
from pathlib import Path


def read_path(about: str) -> Path | None:
    """Return the path that `--data` names; None if it names none, or none that exists.

    Args:
        about: What it holds, for the help.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", metavar="FILE", help=f"CSV file, gzipped or not: {about}")
    name = parser.parse_args().data
    return Path(name) if name is not None and Path(name).exists() else None


def read_given_data(about: str) -> list[dict[str, str]] | None:
    """Return the rows of the CSV file that `--data FILE` names, or say that it is missing.

    Args:
        about: What the file holds, for the message and the help.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", metavar="FILE", help=f"CSV file, gzipped or not: {about}")
    name = parser.parse_args().data
    if name is None or not Path(name).is_file():
        missing = "No data is given" if name is None else f"There is no file {name}"
        print(f"{missing}: this benchmark needs --data FILE with {about}.")
        return None
    raw = Path(name).read_bytes()
    text = (gzip.decompress(raw) if name.endswith(".gz") else raw).decode()
    return list(csv.DictReader(text.splitlines()))
