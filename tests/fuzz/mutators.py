"""How `tests.fuzz.run` changes what it starts from, where changing bytes would not get far."""

from __future__ import annotations

import json
import math
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qsl, urlencode

import yaml

MARK = "xq9"
"""Stands in what must come out of a page escaped."""

_ODD: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 10**400, 1e308, -1e308, 5e-324, math.inf, math.nan,
    "", "0", "\x00", "\ud800", "</script>", [], {}, [[]], {"": None}, "9" * 5000,
)  # fmt: skip


def mutated_json(data: bytes, random: Random) -> bytes:
    """Return a JSON text in which one value became another, odd one, or changed its place."""
    tree = {"root": json.loads(data)}
    places: list[tuple[Any, Any]] = [(tree, "root")]
    for parent, key in places:
        child = parent[key]
        if isinstance(child, dict):
            places += [(child, name) for name in child]
        elif isinstance(child, list):
            places += [(child, index) for index in range(len(child))]
    parent, key = random.choice(places[1:] or places)
    other, name = random.choice(places)
    parent[key] = random.choice([*_ODD, other[name], random.uniform(-1e9, 1e9)])
    return json.dumps(tree["root"]).encode("utf-8", "surrogatepass")


def mutated_lines(data: bytes, random: Random) -> bytes:
    """Return a text with a number, a word or a line of it replaced, doubled, cut or moved."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    words = lines[at].split(b" ")
    word = random.randrange(len(words))
    odd = [b"", b"-1", b"9" * 30, b"9" * 5000, b"1e999", b"nan", b"\xff", b"\0", b"\x1b[31m", b"'"]
    how = random.randrange(5)
    if how == 0:
        words[word] = random.choice(odd)
    elif how == 1:
        words[word] = words[word][: random.randrange(len(words[word]) + 1)] + random.choice(odd)
    elif how == 2:
        words.insert(word, random.choice(odd))
    elif how == 3:
        return b"\n".join([*lines[:at], *lines[random.randrange(len(lines)) :]])
    else:
        return data[: random.randrange(len(data) + 1)] + random.choice(odd)
    lines[at] = b" ".join(words)
    return b"\n".join(lines)


_ODD_CELLS = (
    "", "-", "-1", "0", "9" * 400, "1e308", "1e999", "nan", "inf", "²", "1,5", "1.5.5", "\0",
    "\ud7ff", "99999999999-01:00:00", "2026-13-45", "9999999999999999", "-9e17", "1" + "e1" * 9,
    "[" * 3000,
    "{'a': 10**9**9}", "=1+1", "'", '"', "(" * 3000, "1 PB", "5Ec", "a\tb", "<script>",
)  # fmt: skip


def mutated_table(data: bytes, random: Random) -> bytes:
    """Return a table with an odd cell, or a column or a line too many or too few."""
    rows = data.decode("utf-8", "replace").split("\n")
    separator = max("\t|;,", key=rows[0].count)
    at = random.randrange(len(rows))
    cells = rows[at].split(separator)
    column = random.randrange(len(cells))
    how = random.randrange(8)
    if how == 0:
        return mutated_lines(data, random)
    if how == 1:
        rows.insert(at, random.choice(rows))
    elif how == 2:
        del cells[column]
    else:
        cells[column] = random.choice([*_ODD_CELLS, *cells])
    rows[at] = separator.join(cells)
    return "\n".join(rows).encode()


def mutated_yaml(data: bytes, random: Random) -> bytes:
    """Return a YAML text in which one value became another, odd one: JSON is YAML, too."""
    tree = yaml.safe_load(data)
    return mutated_json(json.dumps(tree, default=str).encode(), random)


def mutated_database(data: bytes, random: Random) -> bytes:
    """Return an SQLite file with an odd cell, without a table or a column, or with odd bytes."""
    if random.random() < 0.3:
        changed = bytearray(data)
        for _ in range(random.randrange(1, 4)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        return bytes(changed)
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        Path(file.name).write_bytes(data)
        with closing(sqlite3.connect(file.name)) as db, suppress(sqlite3.Error):
            db.execute("PRAGMA foreign_keys = OFF")
            _change(db, random)
            db.commit()
        return Path(file.name).read_bytes()


def _change(db: sqlite3.Connection, random: Random) -> None:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    table = random.choice([name for (name,) in db.execute(query)])
    columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
    column = random.choice(columns)
    if random.random() < 0.05:
        db.execute(f'DROP TABLE "{table}"')
        return
    if random.random() < 0.05:
        db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        return
    odd = [
        None, "", -1, 2**62, -(2**63), 1e308, float("inf"), b"\xff\x00", "\x00", "x" * 1000,
        "9" * 400, "2026-13-45 99:99:99", "/etc/passwd", "../..", "\x1b[31m",
    ]  # fmt: skip
    rows = [rowid for (rowid,) in db.execute(f'SELECT rowid FROM "{table}"')] or [0]
    db.execute(
        f'UPDATE OR REPLACE "{table}" SET "{column}" = ? WHERE rowid = ?',
        (random.choice(odd), random.choice(rows)),
    )


def mutated_query(data: bytes, random: Random) -> bytes:
    """Return a path's number and a query with one of its values changed."""
    pairs = parse_qsl(data[1:].decode("utf-8", "ignore"), keep_blank_values=True) or [("q", "")]
    odd = [
        "", f"<{MARK}>", f'" {MARK}="', f"'\"<{MARK}>", "-1", "0", "9" * 18, "9" * 19, "9" * 5000,
        "²", "\x00", "\ud7ff", "' OR 1=1 --", "%", "_", "a" * 3000, "../../etc/passwd", "(", "`",
        "metrics.x > 1", "attributes.run_id IN ()", "eyJvZmZzZXQiOiAxfQ==", "NaN", "1e999",
    ]  # fmt: skip
    names = [
        "experiment", "component", "status", "bottleneck", "q", "filter", "sort", "limit", "page",
        "id", "run", "by", "since", "metric", "param", "any_hardware", "col", "group", "x", "y",
        "color", "baseline", "workspace", "refresh", MARK,
    ]  # fmt: skip
    at = random.randrange(len(pairs))
    if random.random() < 0.4:
        pairs.insert(at, (random.choice(names), random.choice(odd)))
    else:
        pairs[at] = (pairs[at][0], random.choice([*odd, pairs[at][1] + random.choice(odd)]))
    first = data[:1] if random.random() < 0.8 else bytes([random.randrange(7)])
    return first + urlencode(pairs[-12:]).encode()
