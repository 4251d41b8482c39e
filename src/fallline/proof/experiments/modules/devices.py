"""What goes along when a module is moved."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment


class _Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("buffer", torch.ones(2))
        self.plain = torch.ones(2)
        self.listed = [nn.Linear(2, 2)]
        self.registered = nn.ModuleList([nn.Linear(2, 2)])


@experiment(
    "what-moves-with-the-module",
    claim="to() moves parameters, buffers and registered modules; a tensor kept as a plain attribute and layers in a list stay behind. A tensor's own to() moves nothing: it returns a copy.",
)
def what_moves_with_the_module() -> Measured:
    # meta stands for any other device: it is on every machine
    holder = _Holder().to("meta")
    listed, registered = holder.listed[0], holder.registered[0]
    assert isinstance(listed, nn.Linear) and isinstance(registered, nn.Linear)
    batch: Tensor = torch.ones(2)
    batch.to("meta")
    buffer = holder.get_buffer("buffer")
    places = {
        "parameter": holder.weight.device.type,
        "buffer": buffer.device.type,
        "layer in a ModuleList": registered.weight.device.type,
        "plain tensor": holder.plain.device.type,
        "layer in a list": listed.weight.device.type,
        "batch after batch.to(...) without assigning": batch.device.type,
    }
    moved = [name for name, place in places.items() if place == "meta"]
    stayed = [name for name, place in places.items() if place == "cpu"]
    return Measured(
        sides={"after to(...)": places},
        conclusion=f"{len(moved)} of {len(places)} moved: {', '.join(moved)}; left behind: {', '.join(stayed)}",
        holds={
            "what is registered moves": moved == list(places)[:3],
            "the rest stays": stayed == list(places)[3:],
        },
    )
