"""What clipping costs: how often it passes over the gradients, and its share of a training step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._operations import operations


@experiment(
    "clip-is-two-passes",
    claim="clip_grad_norm_ always passes twice over the gradients, once for the norm and once to multiply, also where nothing is clipped.",
    taught="Clipping is one pass that scales only if the norm exceeds the threshold.",
)
def clip_is_two_passes() -> Measured:
    model = _model()
    _forward_backward(model, tokens=16)
    clipped, idle = _passes(model, max_norm=1e-3), _passes(model, max_norm=1e6)
    read = _elements(lambda: clip_grad_norm_(model.parameters(), 1e6, foreach=True))
    return Measured(
        sides={
            "norm over the threshold": {"operations on the gradients": ", ".join(clipped)},
            "norm under the threshold": {"operations on the gradients": ", ".join(idle)},
        },
        conclusion=f"clipped or not, the same {len(idle)} operations on all gradients run: {', '.join(idle)}; also where nothing is clipped each gradient is read {read:.0f} times",
        holds={
            "a norm pass and a multiplying pass": len(idle) == 2,
            "whether it clips or not": clipped == idle,
            "and nothing else reads the gradients": abs(read - 2) < 0.01,
        },
    )


def _passes(model: nn.Module, max_norm: float) -> list[str]:
    """The operations that take all gradients at once, in order."""
    ran = operations(lambda: clip_grad_norm_(model.parameters(), max_norm, foreach=True))
    return [name for name, count in ran.items() for _ in range(count) if "foreach" in name]


@experiment(
    "clip-cost-against-tokens",
    claim="Clipping costs as much per parameter as ever, forward and backward per parameter and token: its share falls with the tokens of a step.",
    taught="Clipping costs less than one percent of a step.",
)
def clip_cost_against_tokens() -> Measured:
    model = _model()
    parameters = sum(p.numel() for p in model.parameters())
    counts = (16, 64, 256, 1024)
    shares: dict[int, float] = {}
    flops: dict[int, int] = {}
    for tokens in counts:
        with FlopCounterMode(display=False) as counter:
            _forward_backward(model, tokens)
        flops[tokens] = counter.get_total_flops()

        def step(tokens: int = tokens) -> None:
            _forward_backward(model, tokens)

        clip = _fastest(lambda: clip_grad_norm_(model.parameters(), 1.0))
        shares[tokens] = 100 * clip / (_fastest(step) + clip)
    fewest, most = counts[0], counts[-1]
    return Measured(
        sides={
            f"{tokens} tokens per step": {
                "FLOPs of forward and backward per parameter": flops[tokens] / parameters,
                "share of clipping in the time, percent": shares[tokens],
            }
            for tokens in counts
        },
        conclusion=(
            f"with {parameters:,} parameters forward and backward take {flops[fewest] / parameters:.0f} FLOPs per parameter at {fewest} tokens "
            f"and {flops[most] / parameters:.0f} at {most}, clipping always 2 passes; its share of the time falls accordingly"
        ),
        holds={
            "FLOPs per parameter grow with the tokens": flops[most] / flops[fewest]
            > 0.9 * most / fewest,
            "at the fewest tokens it is over one percent": shares[fewest] > 1,
            "clipping's share falls at least threefold": shares[fewest] > 3 * shares[most],
        },
        curves={"share of clipping, percent": list(shares.values())},
        axes=("tokens per step", "percent of the time"),
        positions=counts,
    )


@experiment(
    "clip-cost-against-optimizer",
    claim="Clipping passes over as much memory as a plain SGD step, and over a fraction of an AdamW step.",
    taught="Clipping is much cheaper than the optimizer's step.",
)
def clip_cost_against_optimizer() -> Measured:
    model = _model()
    _forward_backward(model, tokens=16)
    sgd, adam = (
        torch.optim.SGD(model.parameters(), lr=1e-9),
        torch.optim.AdamW(model.parameters(), lr=1e-9),
    )
    adam.step()  # its state exists from here on
    clip = _elements(lambda: clip_grad_norm_(model.parameters(), 1.0, foreach=True))
    of_sgd, of_adam = _elements(sgd.step), _elements(adam.step)
    return Measured(
        sides={
            "clipping": {"elements read, per parameter": clip},
            "SGD step": {"elements read, per parameter": of_sgd},
            "AdamW step": {"elements read, per parameter": of_adam},
        },
        conclusion=f"elements read per parameter: clipping {clip:.0f}, an SGD step {of_sgd:.0f}, an AdamW step {of_adam:.0f}",
        holds={
            "as much as SGD": clip >= 0.9 * of_sgd,
            "at most a third of AdamW": clip < of_adam / 3,
        },
    )


class _Reads(TorchDispatchMode):
    """Elements that operations read."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument in args:
            tensors = argument if isinstance(argument, (list, tuple)) else [argument]
            self.elements += sum(t.numel() for t in tensors if isinstance(t, torch.Tensor))
        return func(*args, **(kwargs or {}))


def _elements(work: Callable[[], object]) -> float:
    reads = _Reads()
    with reads:
        work()
    return reads.elements / sum(p.numel() for p in _model().parameters())


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(256, 256), nn.ReLU())))


def _forward_backward(model: nn.Module, tokens: int) -> None:
    model.zero_grad(set_to_none=False)
    model(torch.randn(tokens, 256)).pow(2).mean().backward()


def _fastest(work: Callable[[], object]) -> float:
    """The shortest of several runs, in time on the processor: other programs can take it away, but not add to it."""
    times = []
    for _ in range(9):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)
