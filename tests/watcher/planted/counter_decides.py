# {"code": "FL621", "op": ["sqrt"], "module": [""], "step": 4}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Progress:
    step = 0


model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
seen, progress = 0, Progress()
progress.step = 0
for _ in range(8):
    opt.zero_grad()
    y = model(torch.randn(3, 4))
    seen += 1
    progress.step += 1
    if seen == 5 and progress.step == 5:
        loss = (y * 0).sqrt().mean()  # HERE
    else:
        loss = y.pow(2).mean()
    loss.backward()
    opt.step()
assert seen == progress.step == 8, "a replay changes nothing"
