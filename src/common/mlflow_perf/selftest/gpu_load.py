"""A load for a GPU: matrices multiplied through the library that is installed.

We do not install such a library: a machine with a GPU for work has one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mlflow_perf.errors import SourceUnavailableError

_SIZE = 4096


def load_multiplier(load: Callable[[str], Any] = import_module) -> Callable[[], None]:
    """Return a function that keeps the first GPU busy: it multiplies matrices and waits for them.

    Args:
        load: Imports a library by its name.

    Raises:
        SourceUnavailableError: If no suitable library is installed, or none sees a GPU.
    """
    why = "No GPU, or neither torch nor cupy is installed to keep one busy."
    for name in ("torch", "cupy"):
        try:
            library = load(name)
            if name == "torch":
                seen = library.cuda.is_available()
            else:
                seen = library.cuda.runtime.getDeviceCount() > 0
            if not seen:
                why = f"{'PyTorch' if name == 'torch' else 'CuPy'} sees no GPU."
                continue
            if name == "torch":
                matrix = library.ones((_SIZE, _SIZE), device="cuda")
                multiply, wait = library.mm, library.cuda.synchronize
            else:
                matrix = library.ones((_SIZE, _SIZE), dtype=library.float32)
                multiply, wait = library.matmul, library.cuda.Stream.null.synchronize
        except ImportError:
            continue
        except Exception as error:  # noqa: BLE001 - a broken driver may raise anything
            why = f"{name} cannot use the GPU: {type(error).__name__}."
            continue

        def keep_busy(matrix: Any = matrix, multiply: Any = multiply, wait: Any = wait) -> None:
            for _ in range(8):
                multiply(matrix, matrix)
            wait()

        return keep_busy
    raise SourceUnavailableError(why)
