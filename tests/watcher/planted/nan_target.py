# {"code": "FL623", "op": ["mse_loss"], "module": [""], "step": 3}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(8)]
data[3][1][2, 0] = float("inf")
for x, y in data:
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)  # HERE
    loss.backward()
    opt.step()
