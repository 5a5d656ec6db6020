"""Literals checked against what a component declares, and commands filled in. Imports `graph`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import Literal, Port

__all__ = ["check", "did_you_mean", "fill", "parse", "shell_splits", "text_of"]

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]", re.DOTALL)
_PLACE = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.\-]+)\s*\}\}")
_SHELL = re.compile(r"[^\w@%+=:,./\-]")


def parse(text: str, kind: str, *, where: str) -> Literal:
    """Return a text as a value of the type that is declared.

    Args:
        text: What a person typed.
        kind: `string`, `integer`, `number` or `boolean`; any other is taken as text.
        where: What the value is for, to begin the message with.

    Raises:
        PipelineError: The text is no value of that type.
    """
    try:
        if kind == "integer":
            return int(text)
        if kind == "number":
            return float(text)
        if kind == "boolean":
            return _WORDS[text.strip().lower()]
    except (KeyError, ValueError):
        raise PipelineError(f"{where} is {text!r}, but must be {_a(kind)}.") from None
    return text


def check(value: Literal, port: Port, *, where: str) -> Literal:
    """Return the literal as its declared type, or say what is wrong with it.

    Raises:
        PipelineError: It has another type, is out of bounds or outside the enumeration.
    """
    typed = _typed(value, port, where)
    if isinstance(typed, (int, float)) and not isinstance(typed, bool):
        if isinstance(typed, float) and not math.isfinite(typed):
            raise PipelineError(f"{where} is {typed}, which is no finite number.")
        if port.minimum is not None and typed < port.minimum:
            raise PipelineError(f"{where} is {typed}, below its minimum {port.minimum:g}.")
        if port.maximum is not None and typed > port.maximum:
            raise PipelineError(f"{where} is {typed}, above its maximum {port.maximum:g}.")
    if port.enum and typed not in port.enum:
        allowed = ", ".join(repr(v) for v in port.enum)
        raise PipelineError(f"{where} is {typed!r}, but must be one of {allowed}.")
    return typed


def _typed(value: Literal, port: Port, where: str) -> Literal:
    if port.is_path:
        raise PipelineError(f"{where} is {value!r}, but must be {_a(port.type)}.")
    if isinstance(value, str) and port.type != "string":
        return parse(value, port.type, where=where)
    if port.type == "string":
        return value if isinstance(value, str) else str(value)
    fits = {
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, (int, float)) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
    }
    if not fits.get(port.type, True):
        raise PipelineError(f"{where} is {value!r}, but must be {_a(port.type)}.")
    return value


def fill(command: str, *, inputs: Mapping[str, str | None], outputs: Mapping[str, str]) -> str:
    """Return the command with its places filled in, as Azure ML does it.

    What stands in `$[[…]]` is left out when an input in it is not given. Values go in as they
    are, quoted as the component's author wrote it.

    Args:
        command: Command of a component.
        inputs: Texts by name; None for an optional input that is not given.
        outputs: Paths by name.

    Raises:
        PipelineError: The command names an input or output that the component does not have, or
            uses an optional input outside of `$[[…]]` that is not given.
    """

    def section(match: re.Match[str]) -> str:
        names = [name for kind, name in _PLACE.findall(match[1]) if kind == "inputs"]
        given = all(inputs.get(name, "") is not None for name in names)
        return match[1] if given else ""

    def place(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        known: Mapping[str, str | None] = inputs if kind == "inputs" else outputs
        if name not in known:
            hint = did_you_mean(name, known)
            raise PipelineError(f"The command uses {kind}.{name}, which does not exist{hint}.")
        value = known[name]
        if value is None:
            raise PipelineError(
                f"The command uses the optional inputs.{name}, which is not given: "
                "put it in $[[…]]."
            )
        return value

    return _PLACE.sub(place, _OPTIONAL.sub(section, command)).strip()


def did_you_mean(name: str, known: Mapping[str, object] | list[str]) -> str:
    """Return ` (did you mean 'x'?)`, or the names there are, to put into a message."""
    if near := get_close_matches(name, list(known), n=1, cutoff=0.5):
        return f" (did you mean {near[0]!r}?)"
    names = ", ".join(sorted(known))
    return f" (there is: {names})" if names else " (there is none)"


def text_of(value: Literal) -> str:
    """Return a literal as it stands in a command: as Azure ML has it, so True, not true."""
    return str(value)


def shell_splits(text: str) -> bool:
    """Whether a shell would take the text for anything but one plain word."""
    return bool(_SHELL.search(text))


def _a(kind: str) -> str:
    names = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
    return names.get(kind, f"a {kind}")
