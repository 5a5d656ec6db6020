"""A user's own table of machines and prices, and the cheapest machine that fits."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_perf.analysis.rightsize import RightSize
from mlflow_perf.core.foreign_files import read_foreign
from mlflow_perf.core.format import format_count
from mlflow_perf.errors import SettingError

USABLE = 0.9
"""Share of a virtual machine's memory that the system leaves to a job."""

_GIB = 1024.0
_MOST_MB = 16
_NAMES = {
    "name": ("name", "machine", "instance_type", "vm_size", "size", "sku", "type", "instance"),
    "cpus": ("cpus", "vcpus", "cores", "vcpu", "cpu"),
    "memory": (
        "memory_gb", "memory_gib", "memory_mb", "memory_mib", "ram_gb", "ram_gib", "ram_mb",
        "mem_gb", "mem_gib", "mem_mb", "memory", "ram",
    ),
    "price": (
        "price_per_hour", "price", "hourly_price", "usd_per_hour", "eur_per_hour", "cost_per_hour",
        "price_usd", "hourly", "cost",
    ),
    "gpus": ("gpus", "gpu"),
    "gpu_memory": (
        "gpu_memory_gb", "gpu_memory_gib", "gpu_memory_mb", "gpu_memory_mib", "gpu_ram_gb",
        "gpu_ram_gib", "gpu_ram_mb", "gpu_mem_gb", "gpu_mem_gib", "gpu_mem_mb", "gpu_memory",
        "gpu_ram", "vram_gb", "vram_gib", "vram_mb", "vram",
    ),
}  # fmt: skip
"""What a column may be called, the name to recommend first."""

_OPTIONAL = ("gpus", "gpu_memory")
_FOR_PEOPLE = {"name": "name", "cpus": "number of CPUs", "memory": "memory", "price": "price"}
_NUMBER = r"(?P<number>-?[\d.]+(?:e[+-]?\d+)?)"
_AMOUNT = rf"{_NUMBER}\s*(?P<unit>[kmgt](?:i?b)?|b)?"
_CURRENCY = (
    r"(?:US|[$€£¥₹₩₽₺₪₫]|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|ILS|INR|JPY|KRW|MXN|NOK|NZD|"
    r"PLN|SEK|SGD|TRY|TWD|USD|ZAR|\s)*"
)
_HOURLY = r"(?:(?:/|per|an)\s*(?:hour|hr|h)|hourly)?"
_CELLS = {
    "cpus": (rf"{_NUMBER}\s*(?:v?cpus?|cores?)?", "a number above zero"),
    "memory": (
        _AMOUNT,
        "a number above zero, alone or with the unit B, KB, MB, GB or TB",
    ),
    "price": (
        rf"{_CURRENCY}{_NUMBER}{_CURRENCY}{_HOURLY}",
        "the price of an hour, a number of 0 or more with or without its currency",
    ),
    "gpus": (rf"{_NUMBER}\s*(?:gpus?)?", "a number of 0 or more"),
    "gpu_memory": (
        _AMOUNT,
        "a number of 0 or more, alone or with the unit B, KB, MB, GB or TB",
    ),
}
"""What each column's cells are, as a pattern and in words."""

_UNITS_MB = {"b": 1 / 1024**2, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}


@dataclass(frozen=True)
class Machine:
    """One kind of machine.

    Attributes:
        name: Its name.
        cpus: CPUs.
        memory_mb: Memory, in MB of 2^20 bytes.
        gpus: GPUs.
        price: Price of an hour, in the table's own currency; NaN if unknown.
        gpu_memory_mb: Memory of each GPU, in the same MB; NaN if unknown.
    """

    name: str
    cpus: float
    memory_mb: float
    gpus: float = 0.0
    price: float = math.nan
    gpu_memory_mb: float = math.nan

    def holds(self, size: RightSize) -> bool:
        """Return whether a node of the right size fits beside the system, as far as is known."""
        needs_mb = (size.memory_mb or 0) / USABLE
        enough = self.cpus >= (size.cpus or 1) and self.gpus >= (size.gpus or 0)
        is_too_small = bool(size.gpus) and self.gpu_memory_mb < (size.gpu_memory_mb or 0)
        return enough and self.memory_mb >= needs_mb and not is_too_small


@dataclass(frozen=True)
class MachineChoice:
    """The cheapest machine that fits.

    Attributes:
        machine: The machine; None if none is large enough.
        nodes: How many of them.
        price_per_hour: Price of all of them for an hour.
        reason: Why it is this one, or why it is none, in a sentence.
    """

    machine: Machine | None
    nodes: int
    price_per_hour: float | None
    reason: str

    def as_dict(self) -> dict[str, object]:
        """Return the choice as plain data."""
        name = None if self.machine is None else self.machine.name
        return {"machine": name, "price_per_hour": self.price_per_hour, "reason": self.reason}


def read_machines(path: Path) -> list[Machine]:
    """Return the machines of a CSV file with a column each for name, CPUs, memory and price.

    Memory is in GiB, unless the column's name says MB or the value has a unit: MB is MiB, and so
    on. A price is that of an hour. Columns of GPUs and of the memory of each may be there.

    Raises:
        SettingError: The file cannot be read, a column is missing, or a value is out of range or
            in another unit; the message names the column or the line.
    """
    try:
        text = read_foreign(path, most_mb=_MOST_MB).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise SettingError(f"The machines in {path} cannot be read: {reason}.") from error
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    try:
        lines = csv.DictReader(text.splitlines(), delimiter=separator, strict=True)
        header = [name or "" for name in lines.fieldnames or []]
        columns = _find_columns(header, path)
        found = [
            _read_machine(row, columns, f"{path}, line {lines.line_num}")
            for row in lines
            if any(value for value in row.values())
        ]
    except csv.Error as error:
        raise SettingError(f"{path} is no table of machines: {error}.") from error
    if not found:
        raise SettingError(f"{path} names no machine.")
    return found


def choose_machine(size: RightSize, machines: Sequence[Machine]) -> MachineChoice:
    """Return the cheapest machine on which a node of the right size fits.

    Args:
        size: What to ask for.
        machines: The machines to choose from.
    """
    enough = [machine for machine in machines if machine.holds(size)]
    gpus = f", {format_count(size.gpus, 'GPU')}" if size.gpus else ""
    needs_gib = (size.gpu_memory_mb or 0) / _GIB if size.gpus else 0.0
    gpus += f" with {needs_gib:.3g} GiB" if needs_gib else ""
    wanted = f"{format_count(size.cpus or 1, 'CPU')}, {(size.memory_mb or 0) / _GIB:.3g} GiB{gpus}"
    if not enough:
        reason = f"None of {format_count(len(machines), 'machine')} has {wanted} to spare."
        return MachineChoice(None, size.nodes, None, reason)
    best = min(enough, key=lambda m: (m.price, m.gpus, m.memory_mb, m.cpus, m.name))
    price = best.price * size.nodes
    reason = f"{best.name}: the cheapest of {len(enough)} that have {wanted} to spare"
    if needs_gib and math.isnan(best.gpu_memory_mb):
        reason += ", though the table does not say how much memory its GPUs have"
    elif size.gpus and not needs_gib:
        reason += ", though it is unknown how much GPU memory the job needs"
    elif size.gpus is None:
        reason += ", though it is unknown whether the job needs a GPU"
    reason += f"; {size.nodes} × {best.price:g} an hour"
    if size.minutes is not None and (peaks := [run.duration_sec for run in size.seen]):
        reason += f", {price * max(peaks) / 3600:.3g} for the longest run"
    return MachineChoice(best, size.nodes, price, f"{reason}.")


def _find_columns(header: Sequence[str], path: Path) -> dict[str, str]:
    """Return the table's own name of each column that is needed, and of the GPUs' if there are any.

    Raises:
        SettingError: When one is missing.
    """
    plain = {re.sub(r"\W+", "_", name.strip().lower()).strip("_"): name for name in header}
    found = {}
    for key, names in _NAMES.items():
        known = next((plain[name] for name in names if name in plain), None)
        if known is not None:
            found[key] = known
        elif key not in _OPTIONAL:
            has = ", ".join(name for name in header if name) or "none"
            raise SettingError(
                f"{path} has no column with the {_FOR_PEOPLE[key]} of a machine: "
                f"call it {names[0]}. Its columns are: {has}."
            )
    return found


def _read_machine(row: Mapping[str, str | None], columns: Mapping[str, str], where: str) -> Machine:
    numbers = {"gpus": 0.0, "gpu_memory": math.nan}
    for key in ("cpus", "memory", "price", *_OPTIONAL):
        name = columns.get(key)
        text = "" if name is None else (row.get(name) or "").strip()
        if key in _OPTIONAL and not text:
            continue
        pattern, wanted = _CELLS[key]
        match = re.fullmatch(pattern, text, re.IGNORECASE)
        try:
            value = float(match["number"]) if match else math.nan
        except ValueError:  # 1.2.3, or a point alone
            value = math.nan
        least = 0.0 if key in ("price", *_OPTIONAL) else 1e-9
        if not (math.isfinite(value) and value >= least):
            raise SettingError(f"{where}: {name} is {text!r}, but must be {wanted}.")
        if key.endswith("memory"):
            in_mb = (name or "").lower().rstrip(" )]").endswith(("mb", "mib"))
            unit = (match and match["unit"]) or ("m" if in_mb else "g")
            value *= _UNITS_MB[unit[0].lower()]
        numbers[key] = value
    title = (row.get(columns["name"]) or "").strip()
    if not title:
        raise SettingError(f"{where}: the machine has no name.")
    order = ("cpus", "memory", "gpus", "price", "gpu_memory")
    return Machine(title, *(numbers[key] for key in order))
