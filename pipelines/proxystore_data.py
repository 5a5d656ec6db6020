"""Two steps that pass their data through a ProxyStore store, whose figures show in the report."""

from pathlib import Path
from typing import Any

from azure.ai.ml import dsl, load_component

COMPONENTS = Path(__file__).resolve().parents[1] / "components"

_produce = load_component(str(COMPONENTS / "proxy_produce" / "component.yaml"))
_consume = load_component(str(COMPONENTS / "proxy_consume" / "component.yaml"))


@dsl.pipeline(
    name="proxystore_data",
    display_name="Data through ProxyStore",
    description="Puts arrays into a store; workers of the next step resolve their proxies.",
    experiment_name="proxystore_data",
    default_compute="cpu-cluster",
)
def proxystore_data(objects: int = 64, object_kb: int = 256, workers: int = 2) -> dict[str, Any]:
    """Return the means of the arrays.

    Args:
        objects: How many arrays.
        object_kb: Size of an array in KiB.
        workers: Worker processes of the second step.
    """
    proxy_produce = _produce(objects=objects, object_kb=object_kb)
    proxy_consume = _consume(
        store=proxy_produce.outputs.store, proxies=proxy_produce.outputs.proxies, workers=workers
    )
    return {"means": proxy_consume.outputs.result}
