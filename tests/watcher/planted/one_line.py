# {"code": "FL621", "op": ["sqrt"], "module": [""], "step": 4}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter([torch.randn(3, 4) for _ in range(8)])
seen = taken = 0
# fmt: off
for _ in range(8):
    x = next(batches); taken += 1; y = model(x); seen += 1
    loss = (y * 0).sqrt().mean() if seen == 5 else y.pow(2).mean()  # HERE
    seen += 0; loss.backward(); opt.step(); opt.zero_grad()
# fmt: on
assert seen == taken == 8, "a replay changes nothing"
