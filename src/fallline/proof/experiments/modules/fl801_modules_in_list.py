"""FL801: layers kept in a plain Python list."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import flat

LAYERS, UPDATES = 4, 60


@experiment(
    "FL801",
    claim="Layers in a plain list are not in parameters() or state_dict(), are not reached by to() and eval(), and stay at "
    "their first values; in a ModuleList they are trained.",
)
def modules_in_list() -> Measured:
    wrong, right = _Run(list), _Run(nn.ModuleList)
    return Measured(
        sides={"wrong": wrong.seen, "right": right.seen},
        conclusion=f"with a list parameters() has {wrong.seen['tensors in parameters()']} tensors instead of {right.seen['tensors in parameters()']}, and "
        f"{wrong.seen['layers that training moved']} of {LAYERS} layers move in {UPDATES} updates instead of {right.seen['layers that training moved']}",
        holds={
            "parameters() does not list them": right.seen["tensors in parameters()"]
            - wrong.seen["tensors in parameters()"]
            == 2 * LAYERS,
            "a checkpoint does not hold them": right.seen["tensors in state_dict()"]
            - wrong.seen["tensors in state_dict()"]
            == 2 * LAYERS,
            "training does not move them": wrong.seen["layers that training moved"] == 0,
            "to() does not convert them": wrong.seen["layers that to(float64) converted"] == 0,
            "eval() does not reach them": wrong.seen["layers in eval mode after eval()"] == 0,
            "in a ModuleList all of it works": {
                right.seen[name]
                for name in (
                    "layers that training moved",
                    "layers that to(float64) converted",
                    "layers in eval mode after eval()",
                )
            }
            == {LAYERS},
            "the loss ends higher": wrong.losses[-1] > right.losses[-1],
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


class _Net(nn.Module):
    def __init__(self, container: type) -> None:
        super().__init__()
        self.layers = container([nn.Linear(16, 16) for _ in range(LAYERS)])
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        output: Tensor = self.head(x)
        return output


class _Run:
    def __init__(self, container: type) -> None:
        torch.manual_seed(0)
        model = _Net(container)
        x = torch.randn(64, 16)
        y = x[:, :1] * x[:, 1:2]
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        before = [flat(layer.parameters()) for layer in model.layers]
        self.losses: list[float] = []
        for _ in range(UPDATES):
            loss = mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())
        after = [flat(layer.parameters()) for layer in model.layers]
        moved = sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        model.to(torch.float64).eval()
        self.seen = {
            "tensors in parameters()": len(list(model.parameters())),
            "tensors in state_dict()": len(model.state_dict()),
            "layers that training moved": moved,
            "layers that to(float64) converted": sum(
                layer.weight.dtype == torch.float64 for layer in model.layers
            ),
            "layers in eval mode after eval()": sum(not layer.training for layer in model.layers),
        }
