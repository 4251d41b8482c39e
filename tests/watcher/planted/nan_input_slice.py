# {"code": "FL623", "op": ["linear"], "module": null, "step": 6}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

X = torch.randn(100, 4)
X[63, 2] = float("nan")
Y = torch.randn(100, 1)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10):
    xb = X[i * 10 : i * 10 + 10]
    yb = Y[i * 10 : i * 10 + 10]
    loss = nn.functional.mse_loss(model(xb), yb)  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()
