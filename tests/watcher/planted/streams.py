# {"code": "FL620", "op": ["log"], "module": [""], "step": 2}
import random

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

random.seed(0)
np.random.seed(0)
own, numbers = torch.Generator().manual_seed(0), np.random.default_rng(0)
model, drawn = nn.Linear(4, 1), []
opt = torch.optim.SGD(model.parameters(), 1e-2)
for i in range(4):
    y = model(torch.randn(3, 4))
    mix = random.random() + np.random.rand() + numbers.random() + torch.rand((), generator=own)
    loss = torch.log((y * mix).square().mean() * (i != 2))  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()
    drawn.append(float(mix))
random.seed(0)
np.random.seed(0)
own, numbers = torch.Generator().manual_seed(0), np.random.default_rng(0)
for mix in drawn:
    again = random.random() + np.random.rand() + numbers.random() + torch.rand((), generator=own)
    assert mix == float(again), "a replay draws nothing from the script's own streams"
