# {"code": "FL620", "op": ["div"], "module": [""], "step": 6}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 4)
        with torch.no_grad():
            self.emb.weight[7] = 0
        self.out = nn.Linear(4, 1)

    def forward(self, ids):
        e = self.emb(ids)
        e = e / e.norm(dim=-1, keepdim=True)  # HERE
        return self.out(e).mean()


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    ids = torch.randint(0, 6, (5,))
    if i == 6:
        ids[2] = 7
    opt.zero_grad()
    loss = model(ids) ** 2
    loss.backward()
    opt.step()
