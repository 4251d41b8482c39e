"""Training scripts with one planted fault each: which code, operation, module and update must be named; `# HERE` is the line."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """What the finding must say. `op` and `module` may name alternatives; None: not checked."""

    code: str
    op: tuple[str, ...] | None
    module: tuple[str, ...] | None
    step: int
    script: str
    status: int = 0  # of the script itself

    @property
    def line(self) -> int | None:
        lines = self.script.split("\n")
        return next((n for n, text in enumerate(lines, 1) if "# HERE" in text), None)


HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
"""

FAULTS: dict[str, Fault] = {}

FAULTS["inline_log"] = Fault(
    "FL620",
    ("log",),
    ("",),
    5,
    HEAD
    + """
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    x = torch.randn(5, 4)
    pred = torch.sigmoid(model(x))
    if i == 5:
        pred = pred * 0
    loss = -torch.log(pred).mean()  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
)

FAULTS["inline_div"] = Fault(
    "FL620",
    ("div",),
    ("",),
    3,
    HEAD
    + """
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    x = torch.randn(5, 4)
    mask = torch.ones(5) if i != 3 else torch.zeros(5)
    per = model(x).pow(2).mean(1)
    loss = (per * mask).sum() / mask.sum()  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
)

FAULTS["sqrt_grad"] = Fault(
    "FL621",
    ("sqrt",),
    ("",),
    4,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)
    def forward(self, x, kill):
        h = self.a(x)
        if kill:
            h = h * 0
        return self.b(torch.sqrt(h ** 2))  # HERE
model = Net()
opt = torch.optim.Adam(model.parameters())
for i in range(8):
    x = torch.randn(5, 4)
    opt.zero_grad()
    loss = model(x, i == 4).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["where_log"] = Fault(
    "FL621",
    ("log",),
    ("",),
    2,
    HEAD
    + """
model = nn.Linear(4, 4)
opt = torch.optim.Adam(model.parameters())
def criterion(p):
    return torch.where(p > 0, torch.log(p), torch.zeros_like(p)).sum()  # HERE
for i in range(8):
    x = torch.randn(5, 4)
    opt.zero_grad()
    p = model(x) * 0 if i == 2 else model(x).exp()
    loss = criterion(p)
    loss.backward()
    opt.step()
""",
)

FAULTS["softmax_row"] = Fault(
    "FL620",
    ("softmax",),
    ("layers.1",),
    6,
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)
    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        scores = scores.masked_fill(mask, float("-inf"))
        return scores.softmax(-1) @ x  # HERE
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.head = nn.Linear(8, 1)
    def forward(self, x, mask):
        for i, layer in enumerate(self.layers):
            x = layer(x, mask if i == 1 else mask & False)
        return self.head(x)
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    x = torch.randn(2, 5, 8)
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1).expand(2, 5, 5).clone()
    if i == 6:
        mask[1, 2] = True
    opt.zero_grad()
    loss = model(x, mask).pow(2).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["exp_overflow"] = Fault(
    "FL620",
    ("exp",),
    ("1",),
    3,
    HEAD
    + """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        h = self.fc(x)
        return h.exp() / h.exp().sum(-1, keepdim=True)  # HERE
model = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    x = torch.randn(3, 4) * (1e4 if i == 3 else 1)
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["custom_backward"] = Fault(
    "FL621",
    ("Scale",),
    ("",),
    5,
    HEAD
    + """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bad):
        ctx.bad = bad
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return (g / 0 if ctx.bad else g * 2), None
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.out = nn.Linear(4, 1)
    def forward(self, x, bad):
        return self.out(Scale.apply(self.fc(x), bad))  # HERE
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    opt.zero_grad()
    loss = model(torch.randn(3, 4), i == 5).pow(2).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["custom_forward"] = Fault(
    "FL620",
    ("div", "reciprocal"),
    ("",),
    2,
    HEAD
    + """
class Inv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = 1 / x  # HERE
        ctx.save_for_backward(y)
        return y
    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return -g * y * y
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        return Inv.apply(self.fc(x).clamp(min=0) if x.sum() > 1e6 else self.fc(x) + 50)
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    opt.zero_grad()
    loss = model(torch.randn(3, 4) + (1e7 if i == 2 else 0)).pow(2).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["loss_module"] = Fault(
    "FL620",
    ("div",),
    ("",),
    4,
    HEAD
    + """
class Loss(nn.Module):
    def forward(self, p, t):
        return (t * (t / p).log()).sum()  # HERE
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    def forward(self, x):
        return self.body(x)
model, crit = Net(), Loss()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    opt.zero_grad()
    out = model(torch.randn(3, 4))
    loss = crit(out + (0 if i == 4 else 1), torch.ones(3, 4))
    loss.backward()
    opt.step()
""",
)

FAULTS["amp_fp16"] = Fault(
    "FL620",
    ("mul",),
    ("",),
    5,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 64)
        self.down = nn.Linear(64, 1)
    def forward(self, x):
        h = self.up(x)
        return self.down(h * h)  # HERE
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.001)
for i in range(8):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(torch.randn(3, 8) * (3000 if i == 5 else 0.1))
        loss = (out - 1).pow(2).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["dropout"] = Fault(
    "FL620",
    ("div",),
    ("",),
    3,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.drop = nn.Dropout(0.9)
        self.out = nn.Linear(6, 1)
    def forward(self, x):
        h = self.drop(self.fc(x).abs() + 1)
        s = h.sum(-1, keepdim=True)
        return self.out(h / s)  # HERE
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(8):
    opt.zero_grad()
    model.drop.p = 0.95 if i == 3 else 0.0
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["batchnorm"] = Fault(
    "FL620",
    ("log",),
    ("",),
    5,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.bn = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 1)
    def forward(self, x, t):
        h = self.bn(self.fc(x))
        return self.out(torch.log(h + t))  # HERE
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
seen = 0
for i in range(8):
    opt.zero_grad()
    loss = model(torch.randn(16, 4), 0.0 if i == 5 else 20.0).pow(2).mean()
    loss.backward()
    opt.step()
assert model.bn.num_batches_tracked == 8
""",
)

FAULTS["checkpointed"] = Fault(
    "FL621",
    ("sqrt",),
    ("blocks.1",),
    4,
    HEAD
    + """
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        return torch.sqrt(self.fc(x) * 0 if x.mean() > 50 else self.fc(x).abs() + 1)  # HERE
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
    def forward(self, x):
        x = self.blocks[0](x)
        return checkpoint(self.blocks[1], x + (100 if x.shape[0] == 7 else 0), use_reentrant=False)
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.001)
for i in range(8):
    opt.zero_grad()
    loss = model(torch.rand(7 if i == 4 else 3, 4)).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["compiled"] = Fault(
    "FL620",
    ("log",),
    ("",),
    4,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.out = nn.Linear(4, 1)
    def forward(self, x):
        return self.out(torch.log(self.fc(x).abs() * x.abs().amax()))  # HERE
model = Net()
fast = torch.compile(model, backend="eager")
opt = torch.optim.SGD(model.parameters(), lr=0.001)
for i in range(6):
    opt.zero_grad()
    loss = fast(torch.randn(3, 4) * (0 if i == 4 else 1)).pow(2).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["nan_parameter"] = Fault(
    "FL622",
    ("step",),
    ("a", "b"),
    3,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)
    def forward(self, x):
        return self.b(self.a(x))
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    if i == 3:
        opt.param_groups[0]["lr"] = 1e38
    opt.zero_grad()
    loss = model(torch.randn(3, 4)).pow(2).mean() + 100 * model.b.weight.sum()
    loss.backward()
    opt.step()  # HERE
""",
)

FAULTS["nan_input"] = Fault(
    "FL623",
    ("linear",),
    ("a",),
    5,
    HEAD
    + """
from torch.utils.data import DataLoader, TensorDataset
X = torch.randn(32, 4)
X[21, 2] = float("nan")
loader = DataLoader(TensorDataset(X, torch.randn(32, 1)), batch_size=4)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))  # HERE
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.step()
""",
)

FAULTS["nan_input_spoils_running_statistics"] = Fault(
    "FL623",
    ("conv2d",),
    ("net.0",),
    4,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    def forward(self, x):
        return self.net(x)  # HERE
model = Net()
opt = torch.optim.Adam(model.parameters())
for i in range(6):
    x = torch.randn(8, 1, 6, 6)
    if i == 4:
        x[3] = float("nan")
    opt.zero_grad()
    loss = F.cross_entropy(model(x), torch.randint(0, 2, (8,)))
    loss.backward()
    opt.step()
""",
)

FAULTS["nan_target"] = Fault(
    "FL623",
    ("mse_loss",),
    ("",),
    3,
    HEAD
    + """
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(8)]
data[3][1][2, 0] = float("inf")
for x, y in data:
    opt.zero_grad()
    loss = F.mse_loss(model(x), y)  # HERE
    loss.backward()
    opt.step()
""",
)

FAULTS["lr_explosion"] = Fault(
    "FL620",
    None,
    None,
    5,
    HEAD
    + """
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    if i == 4:
        opt.param_groups[0]["lr"] = 1e20
    x = torch.randn(8, 4)
    opt.zero_grad()
    loss = (model(x) - 1).pow(2).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["embedding"] = Fault(
    "FL620",
    ("div",),
    ("",),
    6,
    HEAD
    + """
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
""",
)

FAULTS["helper_backward"] = Fault(
    "FL620",
    ("log",),
    ("",),
    3,
    HEAD
    + """
class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.history = []
        self.count = 0
    def loss(self, out, i):
        p = out.softmax(-1)[:, 0]
        if i == 3:
            p = p - p
        return -p.log().mean()  # HERE
    def optimize(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
    def step(self, i):
        out = self.model(torch.randn(3, 4))
        loss = self.loss(out, i)
        self.count += 1
        self.history.append(loss.item())
        print("step", i)
        self.optimize(loss)
t = Trainer()
for i in range(6):
    t.step(i)
assert t.count == 6 and len(t.history) == 6
""",
)

FAULTS["accumulated"] = Fault(
    "FL621",
    ("sqrt",),
    ("",),
    2,
    HEAD
    + """
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
n = 0
for i in range(5):
    opt.zero_grad()
    for j in range(4):
        x = torch.randn(3, 4)
        out = model(x)
        scale = 0.0 if (i, j) == (2, 1) else 1.0
        loss = ((out * scale) ** 2).sum().sqrt() / 4  # HERE
        loss.backward()
    opt.step()
""",
)

FAULTS["pow_grad"] = Fault(
    "FL621",
    ("pow",),
    ("",),
    4,
    HEAD
    + """
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
""",
)

FAULTS["clip_spread"] = Fault(
    "FL621",
    ("sqrt",),
    ("",),
    3,
    HEAD
    + """
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    x = torch.randn(5, 4)
    opt.zero_grad()
    h = model[0](x)
    if i == 3:
        h = h * 0
    loss = (h ** 2).sum().sqrt() + model[1](torch.randn(5, 4)).mean()  # HERE
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
assert all(p.isfinite().all() for p in model.parameters())
""",
)

FAULTS["function_only"] = Fault(
    "FL620",
    ("log",),
    ("",),
    3,
    HEAD
    + """
w = torch.randn(4, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.1)
for i in range(6):
    x = torch.randn(5, 4)
    opt.zero_grad()
    z = (x @ w).abs()
    loss = torch.log(z * (0 if i == 3 else 1)).mean()  # HERE
    loss.backward()
    opt.step()
""",
)

FAULTS["bn_buffer"] = Fault(
    "FL622",
    None,
    ("1",),
    3,
    HEAD
    + """
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(6):
    if i == 3:
        model[1].running_var.fill_(float("nan"))
        model[1].eval()
    opt.zero_grad()
    loss = model(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    opt.step()
""",
)

FAULTS["lstm_exp"] = Fault(
    "FL620",
    ("exp", "mean"),
    ("",),
    4,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 2)
    def forward(self, x, h):
        o, h = self.rnn(x, h)
        return self.head(o[:, -1]), h
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
hidden = None
total = 0.0
for i in range(6):
    x = torch.randn(3, 5, 4)
    out, hidden = model(x, hidden)
    hidden = tuple(h.detach() for h in hidden)
    rate = out[:, 0] * (1e4 if i == 4 else 1)
    loss = (rate.exp() - rate).mean()  # HERE
    opt.zero_grad()
    loss.backward()
    opt.step()
    total += loss.item()
""",
)

FAULTS["dict_loss"] = Fault(
    "FL620",
    ("div",),
    ("",),
    2,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4)
    def forward(self, x, t):
        h = self.enc(x)
        return {"loss": self.criterion(h, t), "h": h}
    def criterion(self, h, t):
        return (h / t).pow(2).mean()  # HERE
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.001)
def main():
    for i in range(6):
        t = torch.ones(3, 4)
        if i == 2:
            t[1, 1] = 0
        opt.zero_grad()
        out = model(torch.randn(3, 4), t)
        out["loss"].backward()
        opt.step()
main()
""",
)

FAULTS["big_embedding_grad"] = Fault(
    "FL621",
    ("sqrt",),
    ("",),
    3,
    HEAD
    + """
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
""",
)

FAULTS["multi_loss"] = Fault(
    "FL620",
    ("exp",),
    ("",),
    5,
    HEAD
    + """
enc, dec = nn.Linear(4, 2), nn.Linear(2, 4)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=0.01)
meters = {"kl": 0.0, "rec": 0.0}
for epoch in range(2):
    for i in range(4):
        x = torch.randn(6, 4)
        mu = enc(x)
        logvar = mu * (300 if (epoch, i) == (1, 1) else 0.1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).clamp(max=5).exp()
        rec = F.mse_loss(dec(z), x)
        kl = -0.5 * (1 + logvar - mu ** 2 - logvar.abs().exp()).mean()  # HERE
        loss = rec + 0.1 * kl
        meters["kl"] += kl.item()
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
)

FAULTS["own_check_raises"] = Fault(
    "FL620",
    ("log",),
    ("",),
    4,
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x, t):
        return torch.log(self.fc(x).abs() * t).mean()  # HERE
def main():
    model = Net()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    history = []
    for i in range(6):
        opt.zero_grad()
        loss = model(torch.randn(3, 4), 0.0 if i == 4 else 1.0)
        history.append(loss.item())
        if not torch.isfinite(loss):
            raise RuntimeError(f"loss {loss}")
        loss.backward()
        opt.step()
main()
""",
    status=1,
)
