"""One module or one weight in two places."""

from __future__ import annotations

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment


@experiment(
    "shared-weights-are-one-parameter",
    claim="A weight or a block used in two places is one parameter: listed once, its gradient the sum of both uses, under two names in the state dict.",
    taught="Shared weights are updated twice.",
)
def shared_weights_are_one_parameter() -> Measured:
    torch.manual_seed(0)
    model = nn.ModuleDict({"embedding": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)})
    apart = sum(p.numel() for p in model.parameters())
    embedding, head = model["embedding"], model["head"]
    assert isinstance(embedding, nn.Embedding) and isinstance(head, nn.Linear)
    head.weight = embedding.weight
    tied = sum(p.numel() for p in model.parameters())
    tokens = torch.tensor([1, 2, 3])
    (both,) = torch.autograd.grad(head(embedding(tokens)).square().sum(), embedding.weight)
    copy = embedding.weight.detach().clone().requires_grad_()
    parts = torch.autograd.grad(
        nn.functional.linear(embedding(tokens), copy).square().sum(), (embedding.weight, copy)
    )
    off = (both - parts[0] - parts[1]).abs().max().item() / both.abs().max().item()
    names = len(model.state_dict())
    return Measured(
        sides={
            "apart": {"parameters": apart},
            "tied": {
                "parameters": tied,
                "names in the state dict": names,
                "gradient against the sum of both uses": off,
            },
        },
        conclusion=f"tied, {apart} values become {tied}, under {names} names; the gradient is the sum of both uses (off by {off:.0e})",
        holds={
            "listed once": tied * 2 == apart,
            "saved under both names": names == 2,
            "the gradient is the sum": off < 1e-5,
        },
    )
