# {"code": "FL621", "op": ["pow"], "module": [""], "step": 4}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Linear(4, 3)
opt = torch.optim.AdamW(model.parameters(), lr=0.1)
for i in range(6):
    x = torch.randn(5, 4)
    out = model(x)
    target = out.detach() if i == 4 else torch.zeros(5, 3)
    loss = (out - target).abs().pow(0.5).mean()  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()
