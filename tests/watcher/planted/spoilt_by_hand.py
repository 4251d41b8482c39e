# {"code": "FL622", "op": ["mul"], "module": ["0"], "step": 3}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
running = torch.zeros(())
for i in range(6):
    loss = model(torch.randn(3, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    running.mul_(0.9)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(float("inf") if i == 2 else 1.0)  # HERE
