"""A prefill and a decode node: real NIXL transfers of cache blocks, and their figures."""

from pathlib import Path
from typing import Any

from azure.ai.ml import dsl, load_component

COMPONENTS = Path(__file__).resolve().parents[1] / "components"

_transfer = load_component(str(COMPONENTS / "kv_transfer" / "component.yaml"))


@dsl.pipeline(
    name="kv_transfer",
    display_name="KV transfer",
    description="Moves key-value cache blocks between two nodes with NIXL.",
    experiment_name="kv_transfer",
    default_compute="cpu-cluster",
)
def kv_transfer(requests: int = 50, layers: int = 16, blocks: int = 8) -> dict[str, Any]:
    """Return the figures of the transfers.

    Args:
        requests: Requests whose blocks are moved.
        layers: Layers of the model.
        blocks: Blocks per request and layer.
    """
    kv_transfer = _transfer(requests=requests, layers=layers, blocks=blocks)
    return {"result": kv_transfer.outputs.result}
