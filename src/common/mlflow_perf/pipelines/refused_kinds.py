"""Kinds of steps that only the service of Azure ML can run, and what to use instead."""

from __future__ import annotations

# Why a kind of node cannot run here, which completes "which …", and what to do instead.
_REFUSED = {
    "parallel_for": ("is control flow", "write its body once per item"),
    "sweep": ("tries many settings", "use its trial as a command with one setting"),
    "parallel": ("deals mini-batches to workers of its own", "call its script from a command"),
    "spark": ("needs a Spark cluster", "start Spark from a command"),
    "automl": ("is run by the service", "train with a command"),
    "import": ("reads a cloud's database", "download the data and give its path"),
    "data_transfer": ("copies between a cloud's stores", "give the local path"),
    "if_else": ("is control flow", "name the branch that is to run"),
    "do_while": ("is control flow", "write its body once per turn"),
    "fl_scatter_gather": ("is federated", "write the steps of each silo"),
}

CONTROL_FLOW = tuple(kind for kind, (why, _) in _REFUSED.items() if why == "is control flow")
"""Kinds that azure-ai-ml takes from Python, and not from YAML."""


def explain_refusal(kind: str) -> str:
    """Return why a kind of step cannot run here, and what to use, as the end of a sentence.

    Args:
        kind: Its `type`.
    """
    found = (facts for known, facts in _REFUSED.items() if kind.startswith(known))
    why, way_out = next(found, ("is no command", "use a command"))
    return f"is of type {kind}, which {why}: {way_out}"
