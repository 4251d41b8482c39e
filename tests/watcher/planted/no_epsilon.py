# {"code": "FL622", "op": ["step"], "module": ["0"], "step": 0}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
with torch.no_grad():
    model[0].bias.fill_(-100)  # dead: their gradient is zero, and Adam divides by its root
opt = torch.optim.Adam(model.parameters(), lr=0.01, eps=0)
for _ in range(3):
    loss = model(torch.randn(3, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()  # HERE
    with torch.no_grad():
        model[2].bias.clamp_(-1, 1)
