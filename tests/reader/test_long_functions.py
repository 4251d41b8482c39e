"""A long function that only computes is passed over; one that makes what the loop goes over is not."""

from __future__ import annotations

from fallline.verdict.reading import read_text

_SCRIPT = """\
import torch
from torch.utils.data import DataLoader, DistributedSampler


def get_loader(name, tokenizer):
{choices}
    sampler = DistributedSampler(data)
    return DataLoader(data, batch_size=8, sampler=sampler)


loader = get_loader(name, tokenizer)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
"""


def test_the_sampler_of_a_long_function_is_known() -> None:
    choices = "\n".join(f"    if name == {n}:\n        data = load({n})" for n in range(20))
    found = read_text(_SCRIPT.format(choices=choices), "train.py")
    assert [f.code for f in found if f.severity == "error"] == ["FL303"]
