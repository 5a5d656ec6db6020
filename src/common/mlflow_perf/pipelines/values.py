"""Check literals against a component's declarations, and fill in commands."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import Literal, Port

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]", re.DOTALL)
_PLACE = re.compile(r"\$\{\{\s*(inputs|outputs)\.([\w.\-]+)\s*\}\}")
_BINDING = re.compile(r"\$\{\{.*?\}\}")
_NOUNS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
_SHELL = re.compile(r"[^\w@%+=:,./\-]")


def parse_literal(text: str, kind: str, *, where: str) -> Literal:
    """Return a text as a value of the declared type.

    Args:
        text: The user's text.
        kind: `string`, `integer`, `number` or `boolean`; any other type is taken as text.
        where: Name of the value, to begin the message with.

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
        raise PipelineError(f"{where} is {text!r}, but must be {_NOUNS[kind]}.") from None
    return text


def check_literal(value: Literal, port: Port, *, where: str) -> Literal:
    """Return the literal as its declared type.

    Args:
        value: The literal.
        port: The declared input.
        where: Name of the value, to begin the message with.

    Raises:
        PipelineError: It has another type, is out of bounds or outside the enumeration.
    """
    typed = value
    if not port.type:
        return value
    if isinstance(value, str) and not port.is_path and port.type != "string":
        typed = parse_literal(value, port.type, where=where)
    elif port.type == "string":
        typed = str(value)
    elif port.type == "integer" and isinstance(value, float) and value.is_integer():
        typed = int(value)
    else:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = {
            "integer": is_number and isinstance(value, int),
            "number": is_number,
            "boolean": isinstance(value, bool),
        }
        if not fits.get(port.type, not port.is_path):
            noun = _NOUNS.get(port.type, f"a {port.type}")
            raise PipelineError(f"{where} is {value!r}, but must be {noun}.")
    if isinstance(typed, (int, float)) and not isinstance(typed, bool):
        if isinstance(typed, float) and not math.isfinite(typed):
            raise PipelineError(f"{where} is {typed}, which is no finite number.")
        if port.minimum is not None and typed < port.minimum:
            raise PipelineError(f"{where} is {typed}, below its minimum {port.minimum:g}.")
        if port.maximum is not None and typed > port.maximum:
            raise PipelineError(f"{where} is {typed}, above its maximum {port.maximum:g}.")
    # Azure ML compares texts: 224 is one of ['224'], and True one of ['true']. A text that is
    # declared as one of ['True', 'False'] takes any, as a script's own `bool(…)` would.
    allowed_texts = {_as_text(allowed) for allowed in port.enum}
    is_flag = port.type == "string" and allowed_texts == {"true", "false"}
    if port.enum and not is_flag and _as_text(typed) not in allowed_texts:
        allowed = ", ".join(repr(v) for v in port.enum)
        raise PipelineError(f"{where} is {typed!r}, but must be one of {allowed}.")
    return typed


def _as_text(value: Literal) -> str:
    text = format_literal(value)
    return text.lower() if text in ("True", "False") else text


def fill_command(
    command: str, *, inputs: Mapping[str, str | None], outputs: Mapping[str, str]
) -> str:
    """Return the command with its placeholders filled in, as Azure ML does it.

    A section `$[[…]]` is left out if one of its inputs is not given. Values are inserted as they
    are; the component's author has quoted them in the command.

    Args:
        command: Command of a component.
        inputs: Texts by name; None for an optional input that is not given.
        outputs: Paths by name.

    Raises:
        PipelineError: The command names something else, or an input or output that the component
            does not have, or uses an optional input that is not given outside of `$[[…]]`.
    """

    def fill_section(match: re.Match[str]) -> str:
        names = [name for kind, name in _PLACE.findall(match[1]) if kind == "inputs"]
        given = all(inputs.get(name, "") is not None for name in names)
        return match[1] if given else ""

    def fill_place(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        known: Mapping[str, str | None] = inputs if kind == "inputs" else outputs
        if name not in known:
            hint = suggest_name(name, known)
            raise PipelineError(f"The command uses {kind}.{name}, which does not exist{hint}.")
        value = known[name]
        if value is None:
            raise PipelineError(
                f"The command uses the optional inputs.{name}, which is not given: "
                "put it in $[[…]]."
            )
        return value

    if "\0" in command:
        raise PipelineError("The command has a NUL character, which no program can be given.")
    for found in _BINDING.finditer(command):
        if not _PLACE.fullmatch(found[0]):
            raise PipelineError(
                f"The command uses {found[0]}, but only inputs.NAME and outputs.NAME have a value."
            )
    return _PLACE.sub(fill_place, _OPTIONAL.sub(fill_section, command)).strip()


def suggest_name(name: str, known: Mapping[str, object] | list[str]) -> str:
    """Return ` (did you mean 'x'?)` for a message, or the list of all names."""
    if near := get_close_matches(name, list(known), n=1, cutoff=0.5):
        return f" (did you mean {near[0]!r}?)"
    names = ", ".join(sorted(known))
    return f" (there is: {names})" if names else " (there is none)"


def format_literal(value: Literal) -> str:
    """Return a literal as Azure ML inserts it into a command: True, not true."""
    return str(value)


def shell_splits(text: str) -> bool:
    """Return whether a shell would read the text as anything but one plain word."""
    return bool(_SHELL.search(text))
