"""How often torch.compile compiles."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment

CALLS = 20


def _compiled(function: Callable[..., Tensor], given: Sequence[Any], **options: Any) -> int:
    """How many graphs are compiled for these calls."""
    count = 0

    def counting(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        nonlocal count
        count += 1
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(function, backend=counting, **options)
    for one in given:
        compiled(one)
    torch.compiler.reset()
    return count


@experiment(
    "compile-once-or-every-time",
    claim="torch.compile compiles again when a size changes: twice with its default, for each size with dynamic=False until its limit, once with dynamic=True; .item() cuts the graph in two.",
    taught="torch.compile compiles once.",
)
def compile_once_or_every_time() -> Measured:
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # the limit is the point here
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    lengths = [torch.randn(n, 4) for n in range(2, 2 + CALLS)]

    def plain(x: Tensor) -> Tensor:
        out: Tensor = layer(x).sum()
        return out

    def reading(x: Tensor) -> Tensor:
        out: Tensor = layer(x)
        return out * float(out.sum().item())

    same = _compiled(plain, [lengths[0]] * CALLS)
    default = _compiled(plain, lengths)
    static = _compiled(plain, lengths, dynamic=False)
    dynamic = _compiled(plain, lengths, dynamic=True)
    cut = _compiled(reading, lengths[:1])
    limit = int(torch._dynamo.config.recompile_limit)
    return Measured(
        sides={
            f"{CALLS} calls, one size": {"graphs compiled": same},
            f"{CALLS} calls, {CALLS} sizes": {
                "default": default,
                "dynamic=False": static,
                "dynamic=True": dynamic,
            },
            "one call with .item() inside": {"graphs compiled": cut},
        },
        conclusion=f"{CALLS} calls with one size compile {same} graph; with {CALLS} sizes the default compiles {default}, dynamic=True {dynamic}, and dynamic=False {static}, after which it gives up and runs uncompiled; one .item() makes {cut} graphs of one",
        holds={
            "one size, one graph": same == 1,
            "the default compiles twice": default == 2,
            "dynamic=False goes on to its limit": static == limit < CALLS,
            "dynamic=True compiles once": dynamic == 1,
            ".item() cuts the graph": cut > 1,
        },
    )
