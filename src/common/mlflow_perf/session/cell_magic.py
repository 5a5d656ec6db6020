"""Notebooks: `%load_ext mlflow_perf`, and the cell magic `%%mlflow_perf NAME`."""

from __future__ import annotations

import ast
import sys
from typing import Any


def is_notebook() -> bool:
    """Return whether this process runs IPython: a notebook or its shell."""
    module = sys.modules.get("IPython.core.getipython")
    return module is not None and module.get_ipython() is not None


def register_magic(shell: Any) -> None:
    """Give an IPython shell the magic `%%mlflow_perf NAME`, which reports its cell."""

    def run_cell(line: str, cell: str) -> None:
        from mlflow_perf.session.report import report

        with report(line.strip() or None):
            tree = ast.parse(shell.transform_cell(cell))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(shell.compile(tree, "<mlflow_perf>", "exec"), shell.user_ns)  # noqa: S102 - the user's cell
            if last is not None and isinstance(last, ast.Expr):
                code = shell.compile(ast.Expression(last.value), "<mlflow_perf>", "eval")
                value = eval(code, shell.user_ns)  # noqa: S307 - likewise
                if not cell.rstrip().endswith(";"):
                    shell.displayhook(value)

    shell.register_magic_function(run_cell, "cell", "mlflow_perf")
