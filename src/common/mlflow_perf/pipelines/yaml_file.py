"""Read YAML that somebody else wrote: plain data only, in bounded time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.foreign_files import read_foreign
from mlflow_perf.errors import PipelineError

if TYPE_CHECKING:
    import yaml

_MOST_MB = 4  # of hundreds of published pipelines none has 100 kB; PyYAML takes 10 s for 1 MB
_MOST_VALUES = 100_000
_MOST_LEVELS = 100


def read_yaml(path: Path) -> Any:
    """Return the data of a YAML or JSON file; tags that would make other objects are refused.

    Raises:
        PipelineError: It cannot be read, is no YAML, or is too large or too deep; the message names
            the file, and the line where it is known.
    """
    import yaml

    try:
        text = read_foreign(path, most_mb=_MOST_MB).decode("utf-8-sig")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _count_values(root, {}, path)
        return yaml.safe_load(text)
    except PipelineError:
        raise
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or "it holds characters that no text has"
        raise PipelineError(f"{where} is no YAML: {problem}.") from error
    except RecursionError:
        raise PipelineError(f"{path} is nested too deeply.") from None
    except ValueError as error:
        reason = "it is no text in UTF-8" if isinstance(error, UnicodeError) else error
        raise PipelineError(f"{path} cannot be read: {reason}.") from error


def _count_values(node: yaml.Node, known: dict[int, int], path: Path, level: int = 0) -> int:
    """Return how many values a node stands for, those of its aliases included.

    Nine lines of aliases stand for a billion values. PyYAML shares them, but azure-ai-ml copies.

    Raises:
        PipelineError: There are too many, or they are nested too deeply.
    """
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return 1
    if (count := known.get(id(node))) is not None:
        return count
    if level > _MOST_LEVELS:
        raise PipelineError(f"{path} is nested too deeply.")
    parts = node.value if isinstance(node, yaml.SequenceNode) else chain(*node.value)
    count = 1 + sum(_count_values(part, known, path, level + 1) for part in parts)
    if count > _MOST_VALUES:
        raise PipelineError(f"{path} stands for more than {_MOST_VALUES:,} values by its aliases.")
    known[id(node)] = count
    return count


def list_repeated(text: str) -> Iterator[tuple[int, str]]:
    """Yield each key that comes twice, such as that of a copied step, and its line.

    YAML takes the last one, without a word.

    Args:
        text: The text of a file that `read_yaml` has read.
    """
    import yaml

    nodes = [yaml.compose(text, Loader=yaml.SafeLoader)]
    known = set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in known or not isinstance(node, yaml.CollectionNode):
            continue
        known.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
            continue
        seen = set[str]()
        for key, value in node.value:
            if key.value in seen and key.value != "<<":  # which merges what follows it
                yield key.start_mark.line + 1, key.value
            seen.add(key.value)
            nodes.append(value)
