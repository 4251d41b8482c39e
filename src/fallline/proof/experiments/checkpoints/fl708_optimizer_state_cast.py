"""FL708: what loading does to an optimizer's float32 state when the parameters are bfloat16."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from fallline.proof.experiment import Measured, experiment


class _Momentum(torch.optim.Optimizer):
    """Keeps its state in float32 for parameters of any type."""

    def __init__(self, params: list[Tensor], *, careful: bool) -> None:
        super().__init__(params, {"lr": 0.1})
        self.careful = careful

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            held = self.state[p]
            held.setdefault("velocity", torch.zeros_like(p, dtype=torch.float32))
            held["velocity"] = held["velocity"].float().mul(0.9).add(p.grad.float())

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        super().load_state_dict(state_dict)
        if self.careful:
            saved: dict[int, dict[str, Tensor]] = state_dict["state"]  # type: ignore[assignment]
            for number, p in enumerate(self.param_groups[0]["params"]):
                self.state[p]["velocity"] = saved[number]["velocity"].clone()


@experiment(
    "FL708",
    claim="Optimizer.load_state_dict casts float32 state to the type of bfloat16 parameters, so a resumed run continues with rounded state.",
)
def optimizer_state_cast() -> Measured:
    wrong, right = _resume(careful=False), _resume(careful=True)
    return Measured(
        sides={
            "wrong": {
                "largest relative change of the state by loading": wrong[0],
                "bits of a number": wrong[1],
            },
            "right": {
                "largest relative change of the state by loading": right[0],
                "bits of a number": right[1],
            },
        },
        conclusion=f"loading casts the state to {wrong[1]} bits and changes it by up to {100 * wrong[0]:.2f} %; put back as it was saved it has {right[1]} bits and changes by {right[0]:g}",
        holds={
            "the state is bfloat16 after loading": wrong[1] == 16,
            "it was rounded": wrong[0] > 1e-3,
            "put back, it is the same": right[0] == 0 and right[1] == 32,
        },
    )


def _resume(*, careful: bool) -> tuple[float, int]:
    torch.manual_seed(0)
    weight = torch.randn(1024).bfloat16().requires_grad_()
    optimizer = _Momentum([weight], careful=careful)
    for _ in range(3):
        weight.grad = torch.randn(1024).bfloat16()
        optimizer.step()
    before = optimizer.state[weight]["velocity"].clone()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    after = optimizer.state[weight]["velocity"]
    change = ((after.float() - before).abs() / before.abs()).max().item()
    return change, 8 * after.element_size()
