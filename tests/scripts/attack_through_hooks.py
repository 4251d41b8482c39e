import torch
from torch import nn


class Features:
    def __init__(self, model):
        self.model = model
        self.kept = []
        model[0].register_forward_hook(lambda module, inputs, output: self.kept.append(output))

    def of(self, x):
        self.kept.clear()
        out = self.model(x)
        return out, [kept.mean(-1) for kept in self.kept]


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
model.eval()
features = Features(model)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
for x in loader:
    for _ in range(3):
        x = x.detach().requires_grad_(True)
        _, kept = features.of(x)
        (grad,) = torch.autograd.grad(torch.stack(kept).mean(), x)
        x = x + 0.1 * grad.sign()
