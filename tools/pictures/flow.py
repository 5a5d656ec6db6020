"""The pipeline of the docs' pictures, with something to find in each step.

Events are made into features, a model is trained on two nodes, and used twice.
"""

# No `from __future__ import annotations`: azure-ai-ml needs the annotations as objects.
from pathlib import Path
from typing import Any

from azure.ai.ml import Input, MpiDistribution, Output, command, dsl

_CODE = str(Path(__file__).parent / "steps.py")
_RANKS = 2


def _make(
    name: str, arguments: str, inputs: dict[str, Any], outputs: dict[str, Any], **options: Any
) -> Any:
    return command(
        name=name,
        display_name=name,
        code=_CODE,
        command=f"python steps.py {name} {arguments}",
        environment="here@latest",
        inputs=inputs,
        outputs=outputs,
        **options,
    )


_folder = Input(type="uri_folder")
_prepare = _make(
    "prepare",
    "--rows ${{inputs.rows}} --parser ${{inputs.parser}} --out ${{outputs.out}}",
    {"rows": Input(type="integer"), "parser": Input(type="string")},
    {"out": Output(type="uri_folder")},
)
_train = _make(
    "train",
    "--data ${{inputs.data}} --leaves ${{inputs.leaves}} --out ${{outputs.model}}",
    {"data": _folder, "leaves": Input(type="integer")},
    {"model": Output(type="uri_folder")},
    instance_count=_RANKS,
    distribution=MpiDistribution(process_count_per_instance=1),
)
_uses = [
    _make(
        name,
        "--data ${{inputs.data}} --model ${{inputs.model}}",
        {"data": _folder, "model": _folder},
        {},
    )
    for name in ("explain", "score")
]


@dsl.pipeline(name="demand_forecast", experiment_name="demand")  # type: ignore[call-overload,untyped-decorator]  # its annotations want a callable
def demand_forecast(rows: int = 120000, parser: str = "strptime", leaves: int = 63) -> Any:
    """Train on the events, and use the model."""
    prepare = _prepare(rows=rows, parser=parser)
    train = _train(data=prepare.outputs.out, leaves=leaves)
    for use in _uses:
        use(data=prepare.outputs.out, model=train.outputs.model)
    return {"model": train.outputs.model}
