"""Writes profiles in the format of speedscope, which opens them as they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlflow_perf.core.format import clean_folder_name
from mlflow_perf.core.json_io import to_json, write_text
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.profile import Profile


def read_profile(node: NodeDocument) -> Profile | None:
    """Return the tree in a node's document; None without one, and for a damaged one."""
    profile = node.extra.get("profile")
    return Profile.from_dict(profile.get("flame")) if isinstance(profile, dict) else None


def join_speedscope(nodes: Iterable[NodeDocument]) -> dict[str, Any] | None:
    """Return the profiles of several nodes as one file's data; None if no node has one."""
    whole: dict[str, Any] | None = None
    for node in nodes:
        tree = read_profile(node)
        if tree is None:
            continue
        index = node.node.get("index", 0)
        one = tree.to_speedscope(f"{node.component or 'job'}, node {index}")
        if whole is None:
            whole = one
            continue
        offset = len(whole["shared"]["frames"])
        whole["shared"]["frames"] += one["shared"]["frames"]
        for profile in one["profiles"]:
            profile["samples"] = [[offset + i for i in stack] for stack in profile["samples"]]
        whole["profiles"] += one["profiles"]
    return whole


def save_speedscope(document: PerfDocument, folder: Path) -> list[Path]:
    """Write `profile-<n>.speedscope.json` for each node that has a profile; return their paths.

    Raises:
        OSError: When the folder cannot be written.
    """
    files: list[Path] = []
    for index, node in sorted(document.nodes.items()):
        data = join_speedscope([node])
        if data is not None:
            files.append(write_text(folder / f"profile-{index}.speedscope.json", to_json(data)))
    for name, other in sorted(document.components.items()):
        files += save_speedscope(other, folder / clean_folder_name(name))
    return files
