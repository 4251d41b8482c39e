# {"code": "FL621", "op": ["sqrt"], "module": [""], "step": 3}
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(1000, 64)
        self.out = nn.Linear(64, 1, bias=False)

    def forward(self, ids, kill):
        e = self.emb(ids)
        if kill:
            e = e - e
        return self.out(e), e.norm(dim=-1) if not kill else (e * e).sum(-1).sqrt()  # HERE


model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(6):
    opt.zero_grad()
    out, reg = model(torch.randint(0, 1000, (5,)), i == 3)
    loss = out.pow(2).mean() + 0.1 * reg.mean()
    loss.backward()
    opt.step()
assert all(p.isfinite().all() for p in model.parameters())
