from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Output:
    total: torch.Tensor
    feature: torch.Tensor

    def detached(self) -> dict[str, float]:
        return {
            name: float(getattr(self, name).detach().cpu()) for name in self.__dataclass_fields__
        }


class DistillationLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(2, 2)

    def forward(self, student, teacher):
        feature = (self.scale(student) - teacher).pow(2).mean()
        total = feature + (student - teacher).abs().mean()
        return Output(total, feature)


def run_epoch(student, loader, optimizer, distillation_loss):
    totals = {}
    for x, y in loader:
        out = student(x)
        distilled = distillation_loss(out, y)
        supervised = nn.functional.mse_loss(out, y)
        total = supervised + distilled.total
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        distilled_values = distilled.detached()
        distilled_values["distilled_total"] = distilled_values.pop("total")
        values = {"total": float(total.detach().cpu()), **distilled_values}
        values["supervised"] = float(supervised.detach())
        for name, value in values.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
distillation_loss = DistillationLoss()
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randn(8, 2))
)
for epoch in range(3):
    print(run_epoch(model, loader, optimizer, distillation_loss))
