"""FL807: a trainable tensor that is a plain attribute."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment

Made = Callable[[], Tensor]


@experiment(
    "FL807",
    claim="A plain tensor with requires_grad, or a parameter that was moved or converted when it was made, is not trained, not converted "
    "by to() and not saved; an nn.Parameter is.",
)
def parameter_unregistered() -> Measured:
    wrong = _use(lambda: torch.ones(4, requires_grad=True))
    moved = _use(lambda: nn.Parameter(torch.ones(4, dtype=torch.float64)).to(torch.float32))
    right = _use(lambda: nn.Parameter(torch.ones(4)))
    return Measured(
        sides={"wrong": wrong, "right": right, "nn.Parameter(...).to(...)": moved},
        conclusion=f"a plain tensor moves by {wrong['moved in 50 updates']:.1f} in 50 updates and is in the checkpoint "
        f"{wrong['entries in state_dict()']} times; a converted parameter moves by {moved['moved in 50 updates']:.1f} and is in it "
        f"{moved['entries in state_dict()']} times; an nn.Parameter moves by {right['moved in 50 updates']:.1f} and is in it once",
        holds={
            "a plain tensor is not trained, converted or saved": wrong == _UNKNOWN,
            "nor is the result of a conversion": moved == _UNKNOWN,
            "an nn.Parameter is": right["moved in 50 updates"] > 0.5
            and right["in parameters()"] == right["entries in state_dict()"] == 1
            and bool(right["converted by to(float64)"]),
        },
    )


_UNKNOWN = {
    "in parameters()": 0,
    "moved in 50 updates": 0.0,
    "converted by to(float64)": False,
    "entries in state_dict()": 0,
}


class _Scale(nn.Module):
    """Scales its input by a trainable vector; the bias is there so that an optimizer has something to hold."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.scale = made()
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.bias


def _use(made: Made) -> dict[str, float | int | bool]:
    """Teach the scale to be 3, then convert and save the module."""
    torch.manual_seed(0)
    model = _Scale(made)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start = model.scale.detach().clone()
    for x in torch.randn(50, 32, 4):
        loss = (model(x) - 3 * x).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # a converted parameter has one graph for all updates
        optimizer.step()
    moved = (model.scale.detach() - start).abs().mean().item()
    registered = sum(p is model.scale for p in model.parameters())
    model.to(torch.float64)
    return {
        "in parameters()": registered,
        "moved in 50 updates": moved,
        "converted by to(float64)": model.scale.dtype == torch.float64,
        "entries in state_dict()": sum(name == "scale" for name in model.state_dict()),
    }
