# {"code": "FL620", "op": ["logsumexp"], "module": [""], "step": 4}
# Infinities of a mask are meant, until a row has nothing else.
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(7):
    mask = torch.rand(5, 3) > 0.5
    mask[:, 0] = True
    if i == 4:
        mask[2] = False
    scores = model(torch.randn(5, 4)).masked_fill(~mask, float("-inf"))
    loss = scores.logsumexp(1).mean()  # HERE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
