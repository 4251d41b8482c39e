"""Scripts whose every printed bit must be the same with and without the watcher. `END` prints losses, weights and randomness."""

from __future__ import annotations

__all__ = ["SCRIPTS"]

HEAD = """\
import hashlib, random
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)
losses = []


def finish(*models):
    print([l.hex() for l in losses])
    for m in models:
        for n, p in [*m.named_parameters(), *m.named_buffers()]:
            print(n, hashlib.sha1(p.detach().to(torch.complex128).cpu().numpy().tobytes()).hexdigest(), p.requires_grad)
    print(torch.rand(3).tolist(), random.random())


"""

SCRIPTS: dict[str, str] = {}

SCRIPTS["mlp"] = (
    HEAD
    + """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8, shuffle=True)
for epoch in range(5):
    for x, y in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
finish(model)
"""
)

SCRIPTS["cnn_batchnorm"] = (
    HEAD
    + """
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(4 * 36, 3))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.01, total_steps=40)
for i in range(40):
    model.train()
    x, y = torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    sched.step()
    losses.append(loss.item())
    if i % 10 == 0:
        model.eval()
        with torch.no_grad():
            losses.append(F.cross_entropy(model(x), y).item())
finish(model)
"""
)

SCRIPTS["lstm_truncated"] = (
    HEAD
    + """
model = nn.LSTM(4, 8, batch_first=True)
head = nn.Linear(8, 4)
opt = torch.optim.RMSprop([*model.parameters(), *head.parameters()], lr=1e-2)
hidden = None
for i in range(20):
    x = torch.randn(3, 6, 4)
    out, hidden = model(x, hidden)
    hidden = tuple(h.detach() for h in hidden)
    loss = F.mse_loss(head(out), x.roll(1, 1))
    opt.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.grad.clamp_(-0.1, 0.1)
    opt.step()
    losses.append(loss.item())
finish(model, head)
"""
)

SCRIPTS["transformer_accumulation"] = (
    HEAD
    + """
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), 2)
opt = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
for step in range(6):
    opt.zero_grad()
    for micro in range(3):
        x = torch.randn(4, 5, 16)
        loss = F.mse_loss(model(x), x) / 3
        loss.backward()
        losses.append(loss.item())
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    losses.append(norm.item())
    opt.step()
finish(model)
"""
)

SCRIPTS["fp16_scaler_overflow"] = (
    HEAD
    + """
model = nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
for i in range(25):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(torch.randn(8, 8)), torch.randint(2, (8,)))
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    losses += [loss.item(), scaler.get_scale()]
finish(model)
"""
)

SCRIPTS["fused_bf16"] = (
    HEAD
    + """
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
opt = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
for i in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(torch.randn(8, 8)), torch.randint(2, (8,)))
    opt.zero_grad(set_to_none=False)
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(model)
"""
)

SCRIPTS["lbfgs_closure"] = (
    HEAD
    + """
model = nn.Linear(4, 1)
x, y = torch.randn(20, 4), torch.randn(20, 1)
opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
for i in range(6):
    def closure():
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss
    losses.append(opt.step(closure).item())
finish(model)
"""
)

SCRIPTS["gan_two_optimizers"] = (
    HEAD
    + """
G, D = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
og, od = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
for i in range(15):
    real = torch.randn(8, 4) + 1
    fake = G(torch.randn(8, 2))
    od.zero_grad()
    ld = F.binary_cross_entropy_with_logits(D(real), torch.ones(8, 1))
    ld.backward()
    lf = F.binary_cross_entropy_with_logits(D(fake.detach()), torch.zeros(8, 1))
    lf.backward()
    od.step()
    og.zero_grad()
    lg = F.binary_cross_entropy_with_logits(D(fake), torch.ones(8, 1))
    lg.backward()
    og.step()
    losses += [ld.item(), lf.item(), lg.item()]
finish(G, D)
"""
)

SCRIPTS["checkpoint_double_backward"] = (
    HEAD
    + """
from torch.utils.checkpoint import checkpoint
a, b = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.Tanh()), nn.Linear(6, 1)
opt = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
for i in range(15):
    x = torch.randn(5, 6, requires_grad=True)
    out = b(checkpoint(a, x, use_reentrant=False))
    g, = torch.autograd.grad(b(x).sum(), x, create_graph=True)
    loss = out.pow(2).mean() + 0.1 * g.pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(a, b)
"""
)

SCRIPTS["compiled"] = (
    HEAD
    + """
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
fast = torch.compile(model, backend="aot_eager")
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for i in range(10):
    loss = fast(torch.randn(4, 8)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
import torch._dynamo.utils as u
print(u.counters["graph_break"], u.counters["stats"]["unique_graphs"])
finish(model)
"""
)

SCRIPTS["workers_threads_hooks"] = (
    HEAD
    + """
import threading
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
seen = []
model[0].register_forward_hook(lambda m, i, o: seen.append(float(o.detach().sum())))
model[2].weight.register_hook(lambda g: g * 0.5)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
data = TensorDataset(torch.randn(32, 8), torch.randn(32, 1))


def train():
    for epoch in range(2):
        for x, y in DataLoader(data, batch_size=8, shuffle=True, num_workers=2):
            opt.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())


t = threading.Thread(target=train)
t.start()
t.join()
print(seen)
finish(model)
"""
)

SCRIPTS["sparse_complex_shared_by_hand"] = (
    HEAD
    + """
emb = nn.Embedding(20, 4, sparse=True)
out = nn.Linear(4, 20, bias=False)
z = nn.Parameter(torch.randn(3, dtype=torch.complex64))
so, do = torch.optim.SparseAdam(emb.parameters(), 0.01), torch.optim.SGD([out.weight, z], 0.1)
w = torch.randn(4, requires_grad=True)
for i in range(12):
    ids = torch.randint(0, 20, (6,))
    loss = F.cross_entropy(out(emb(ids) * w), ids) + z.abs().pow(2).sum()
    so.zero_grad()
    do.zero_grad()
    if w.grad is not None:
        w.grad = None
    loss.backward()
    so.step()
    do.step()
    with torch.no_grad():
        w -= 0.1 * w.grad
    losses.append(loss.item())
print(w.tolist(), z.tolist())
finish(emb, out)
"""
)

SCRIPTS["goes_nan_guard_off"] = (
    "# guard off\\n"
    + HEAD
    + """
model = nn.Linear(4, 3)
opt = torch.optim.Adam(model.parameters(), lr=0.1)
for i in range(10):
    p = torch.sigmoid(model(torch.randn(5, 4)))
    loss = -torch.log(p * (i != 5)).mean() + F.dropout(p, 0.5).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(model)
"""
)
SCRIPTS["goes_nan_guard_off"] = SCRIPTS["goes_nan_guard_off"].replace(
    "# guard off\\n", "# guard off\n"
)
