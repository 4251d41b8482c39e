# {"code": "FL620", "op": ["log"], "module": [""], "step": 3}
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
opt = torch.optim.Adam(critic.parameters(), 1e-3)
batches = iter([torch.randn(5, 4) for _ in range(6)])
for i in range(6):
    fake = generator(torch.randn(5, 2)).detach()
    real = next(batches)  # a replay must not take a batch of the loop's
    wrong = torch.sigmoid(critic(fake) + (300.0 if i == 3 else 0.0))
    right = torch.sigmoid(critic(real))
    loss = -torch.log(right).mean() - torch.log(1 - wrong).mean()  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()
assert next(batches, None) is None
