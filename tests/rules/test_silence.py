"""Right programs that were reported once, in code that nobody here wrote: they stay without errors and warnings."""

from __future__ import annotations

import json

import pytest

from fallline.verdict.reading import read_text

HEAD = """\
import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

"""

RIGHT = {
    # sums divided by the tokens of the whole window: exactly what FL111 teaches
    "window_tokens": """
def train(model, loader, optimizer, k):
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) < k:
            continue
        tokens = sum((y != -100).sum() for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            loss = F.cross_entropy(model(x), y, ignore_index=-100, reduction="sum")
            (loss / tokens).backward()
        optimizer.step()
        window = []
""",
    "window_tokens_inline": """
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(64, 8), batch_size=4)
batches = iter(loader)
for step in range(10):
    window = [next(batches) for _ in range(4)]
    tokens = sum((x != 0).sum() for x in window)
    for x in window:
        loss = F.mse_loss(model(x), x, reduction="sum")
        (loss / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
    "last_batch_of_custom_dataset": """
class Items(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.randn(4)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Items(50), batch_size=8)
for epoch in range(3):
    for i, x in enumerate(loader):
        loss = model(x).square().mean() / 4
        loss.backward()
        if (i + 1) % 4 == 0 or (i + 1) == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "need_update": """
def train_one_epoch(model, loader, optimizer, loss_fn, accum_steps):
    last_idx = len(loader) - 1
    for batch_idx, (x, y) in enumerate(loader):
        last_batch = batch_idx == last_idx
        need_update = last_batch or (batch_idx + 1) % accum_steps == 0
        loss = loss_fn(model(x), y) / accum_steps
        loss.backward()
        if not need_update:
            continue
        optimizer.step()
        optimizer.zero_grad()


model = nn.Linear(4, 2)
train_one_epoch(model, DataLoader(torch.randn(8, 4)), torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), 4)
""",
    "world_size_guard": """
import torch.distributed as dist


def main(rank, world_size, model, loader, optimizer):
    if world_size > 1:
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
        model = nn.parallel.DistributedDataParallel(model)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    if world_size == 1:
        torch.save(model.state_dict(), "model.pt")
    elif rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
""",
    "path_of_each_rank": """
import torch.distributed as dist


def save(model, folder):
    path = os.path.join(folder, f"part-{dist.get_rank()}.pt")
    torch.save(model.state_dict(), path)


def main(model, loader, optimizer):
    dist.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(model)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    save(model, "out")
    torch.save(optimizer.state_dict(), "optimizer_rank%d.pt" % dist.get_rank())
""",
    "data_split_by_rank": """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Part:
    def __init__(self, data, index):
        self.data, self.index = data, index


def loader_for(dataset):
    size = dist.get_world_size()
    parts = [range(i, len(dataset), size) for i in range(size)]
    part = Part(dataset, parts[dist.get_rank()])
    return DataLoader(part, batch_size=8, shuffle=True)


def run(rank, dataset):
    dist.init_process_group("gloo")
    train_set = loader_for(dataset)
    model = DDP(nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for x in train_set:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
""",
    "two_networks_alternate": """
generator, critic = nn.Sequential(nn.Linear(4, 4), nn.Dropout()), nn.Sequential(nn.Linear(4, 1), nn.Dropout())
first = torch.optim.Adam(generator.parameters())
second = torch.optim.Adam(critic.parameters())
loader = DataLoader(torch.randn(64, 4), batch_size=8)
for epoch in range(3):
    for x in loader:
        generator.eval()
        critic.train()
        second.zero_grad()
        loss = critic(generator(x).detach()).mean() - critic(x).mean()
        loss.backward()
        second.step()
        generator.train()
        critic.eval()
        first.zero_grad()
        fooled = -critic(generator(x)).mean()
        fooled.backward()
        first.step()
""",
    "sum_under_no_grad": """
def run(model, loader, optimizer, criterion):
    total = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            total += loss
    return total


model = nn.Linear(4, 1)
run(model, DataLoader(torch.randn(8, 4)), torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
""",
    "metric_of_a_sum_under_no_grad": """
class Metric:
    def __init__(self):
        self.total = torch.tensor(0.0)

    def update(self, value):
        self.total += value.cpu()


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    metric, step_loss = Metric(), torch.tensor(0.0)
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        with torch.no_grad():
            step_loss += loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric.update(step_loss)


train(nn.Linear(4, 1), DataLoader(torch.randn(8, 4)))
""",
    "numbers_on_ctx": """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, size):
        ctx.factor = factor
        ctx.size = x.shape
        ctx.count = x.size(0)
        ctx.training = size > 1
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None, None


Scale.apply(torch.randn(3, requires_grad=True), 2.0, 4).sum().backward()
""",
    "code_after_raise": """
class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("inference only")
        return grad
""",
    "schedule_in_micro_batches": """
def train(model, loader, epochs, k):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), y) / k
            loss.backward()
            if (i + 1) % k == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()
""",
    "forces_in_evaluation": """
def evaluate(model, loader):
    model.eval()
    total = 0.0
    for positions, energies, forces in loader:
        positions.requires_grad_(True)
        energy = model(positions)
        predicted = -torch.autograd.grad(energy.sum(), positions)[0]
        total += F.l1_loss(predicted, forces).item() + F.l1_loss(energy, energies).item()
    return total


def train(model, loader, optimizer):
    for epoch in range(3):
        model.train()
        for positions, energies, forces in loader:
            positions.requires_grad_(True)
            energy = model(positions)
            predicted = -torch.autograd.grad(energy.sum(), positions, create_graph=True)[0]
            loss = F.mse_loss(energy, energies) + F.mse_loss(predicted, forces)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        evaluate(model, loader)
""",
    "states_in_separate_files": """
def train(model, loader, resume):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    start = 0
    if resume:
        model.load_state_dict(torch.load("model.pt"))
        optimizer.load_state_dict(torch.load("optimizer.pt"))
        scheduler.load_state_dict(torch.load("scheduler.pt"))
        start = torch.load("state.pt")["epoch"]
    for epoch in range(start, 100):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()
        torch.save(model.state_dict(), "model.pt")
        torch.save(optimizer.state_dict(), "optimizer.pt")
        torch.save(scheduler.state_dict(), "scheduler.pt")
        torch.save({"epoch": epoch + 1}, "state.pt")
""",
    "best_model_for_evaluation": """
def fit(model, train_loader, val_loader):
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    best = float("inf")
    for epoch in range(10):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            val = sum(F.mse_loss(model(x), y).item() for x, y in val_loader)
        scheduler.step(val)
        if val < best:
            best = val
            torch.save({"epoch": epoch, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "val": val}, "best.pt")
    checkpoint = torch.load("best.pt")
    model.load_state_dict(checkpoint["model_state_dict"])
    model.eval()
    return model
""",
    "attack_on_a_copy": """
from torch.nn.parallel import DistributedDataParallel as DDP


def perturb(model, x, y, steps=5):
    attacked = copy.deepcopy(model)
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(steps):
        loss = F.cross_entropy(attacked(x + delta), y)
        loss.backward()
        delta.data = (delta + 0.01 * delta.grad.sign()).clamp(-0.1, 0.1)
        delta.grad.zero_()
    return x + delta.detach()


def train(model, loader):
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        adversarial = perturb(model.module, x, y)
        optimizer.zero_grad()
        F.cross_entropy(model(adversarial), y).backward()
        optimizer.step()
""",
    "attack_under_autocast": """
def attack(model, x, y):
    x = x.clone().detach().requires_grad_(True)
    for _ in range(10):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        grad = torch.autograd.grad(loss, x)[0]
        x = (x + 0.01 * grad.sign()).detach().requires_grad_(True)
    return x
""",
    "attack_with_a_schedule": """
class Attack:
    def run(self, model, inputs, labels):
        delta = torch.zeros_like(inputs, requires_grad=True)
        optimizer = torch.optim.SGD([delta], lr=1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.01)
        for i in range(20):
            scheduler.step()
            loss = -F.cross_entropy(model(inputs + delta), labels, reduction="sum")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return inputs + delta.detach()
""",
    "nll_loss_as_a_gather": """
def estimate(model, x, y, noise):
    softmax = F.softmax(model(x + noise), dim=1)
    grad = F.nll_loss(softmax, y, reduction="none").view(-1, 1) * noise
    return grad.mean(0)
""",
    "target_made_once_with_a_graph": """
x = torch.linspace(-1, 1, 50).reshape(-1, 1).requires_grad_(True)
y = x**3 + torch.randn_like(x)
model = nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(100):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward(retain_graph=True)
    optimizer.step()
""",
    "target_made_once_inside_a_function": """
def fit(model):
    x = torch.linspace(-1, 1, 50).reshape(-1, 1).requires_grad_(True)
    y = x**3
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(100):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward(retain_graph=True)
        optimizer.step()
""",
    "aspect_ratio_with_an_epsilon": """
def ciou_loss(a, b):
    wa, ha = a[..., 2] - a[..., 0], a[..., 3] - a[..., 1]
    wb, hb = b[..., 2] - b[..., 0], b[..., 3] - b[..., 1]
    v = (torch.atan(wb / (hb + 1e-7)) - torch.atan(wa / (ha + 1e-7))) ** 2
    return v.mean()
""",
    "aspect_ratio_with_an_epsilon_in_its_name": """
def ciou_loss(a, b, eps=1e-7):
    wa, ha = a[:, 2] - a[:, 0], a[:, 3] - a[:, 1] + eps
    wb, hb = b[:, 2] - b[:, 0], b[:, 3] - b[:, 1] + eps
    return torch.pow(torch.atan(wb / hb) - torch.atan(wa / ha), 2).mean()
""",
    "no_grad_if_there_is_torch": """
AVAILABLE = True


class Sampler:
    def __init__(self, model):
        self.model = model

    def fit(self, loader):
        optimizer = torch.optim.Adam(self.model.parameters())
        self.model.train()
        for x in loader:
            optimizer.zero_grad()
            self.model(x).mean().backward()
            optimizer.step()

    @torch.no_grad() if AVAILABLE else (lambda f: f)
    def sample(self, loader):
        self.model.eval()
        return [self.model(x).numpy() for x in loader]
""",
    "no_grad_around_either_function": """
def run_simple(model, optimizer, loader, is_training):
    model.train() if is_training else model.eval()
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        if is_training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def run(model, optimizer, loader, args, is_training):
    if is_training:
        model.train()
    else:
        model.eval()
    for x, y in loader:
        if is_training and args.use_aux:
            out, aux = model(x)
            loss = F.mse_loss(out, y) + F.mse_loss(aux, y)
        else:
            out = model(x)
            loss = F.mse_loss(out, y)
        if is_training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def train(model, args, load_data):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    train_loader = load_data("train")
    if args.ckpt:
        val_loader = None
    else:
        val_loader = load_data("val")
    for epoch in range(args.epochs):
        if args.no_img:
            run_simple(model, optimizer, train_loader, is_training=True)
        else:
            run(model, optimizer, train_loader, args, is_training=True)
        if not args.ckpt:
            with torch.no_grad():
                if args.no_img:
                    run_simple(model, optimizer, val_loader, is_training=False)
                else:
                    run(model, optimizer, val_loader, args, is_training=False)
""",
    "anomaly_mode_that_is_caught": """
def finetune(head, loader):
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    best = copy.deepcopy(head)
    torch.autograd.set_detect_anomaly(True)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(head(x), y)
            try:
                loss.backward()
            except RuntimeError:
                return best
            optimizer.step()
        best = copy.deepcopy(head)
    return best
""",
    "a_number_or_a_tensor_on_ctx": """
class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, interval):
        if torch.is_tensor(interval):
            ctx.save_for_backward(w, interval)
            ctx.interval = None
        else:
            ctx.save_for_backward(w)
            ctx.interval = interval
        return (w * interval).sum()

    @staticmethod
    def backward(ctx, grad):
        interval = ctx.interval if ctx.interval is not None else ctx.saved_tensors[1]
        return grad * interval, None
""",
    "a_window_dropped_on_purpose": """
def train(model, loader, k, threshold):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = 0.0
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y)
        (loss / k).backward()
        if (i + 1) % k == 0 or i + 1 == len(loader):
            skip = False
            if average > 0 and loss.item() > threshold * average:
                skip = True
                optimizer.zero_grad()
            if not skip:
                optimizer.step()
                optimizer.zero_grad()
            average = 0.9 * average + 0.1 * loss.item()
""",
    "remainder_of_a_progress_bar": """
from tqdm import tqdm

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(8, 4))
for epoch in range(3):
    progress = tqdm(loader)
    for batch in progress:
        loss = model(batch).mean() / 4
        loss.backward()
        if (progress.n + 1) % 4 == 0 or progress.n + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "clip_shown_before_the_training": """
model = nn.Linear(4, 1)
loader = DataLoader(torch.randn(8, 4))
loss = model(torch.randn(2, 4)).mean()
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
print(model.weight.grad.max())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
""",
    "spread_of_whole_images": """
def energy_loss(output, samples):
    relative = (output.var(dim=(1, 2, 3)) / samples.var(dim=(1, 2, 3))).clip(min=0.1, max=10)
    return (relative - 1 - relative.log()).mean()
""",
    "search_for_the_largest_batch": """
def largest(build, size=512):
    while size:
        try:
            model = build()
            loss = model(torch.randn(size, 4)).mean()
            loss.backward()
            del model, loss
            torch.cuda.empty_cache()
            return size
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            size //= 2
""",
    "sum_of_the_steps_of_one_batch": """
def train(model_d, loader, repeats):
    optimizer = torch.optim.SGD(model_d.parameters(), lr=0.1)
    for x in loader:
        total = 0.0
        for _ in range(repeats):
            optimizer.zero_grad()
            loss = model_d(x).square().mean()
            loss.backward()
            optimizer.step()
            total += loss
        print(total.item() / repeats)


train(nn.Linear(4, 1), DataLoader(torch.randn(8, 4)), 3)
""",
    "saved_when_the_training_is_over": """
def train(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()
    torch.save({"epoch": epochs, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "final.pt")
""",
    "a_function_used_as_a_plain_class": """
from torch.autograd import Function


class Distance(Function):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, a, b):
        return torch.pow((a - b).abs() + 1e-4, self.p).sum(1)


def compare(a, b):
    return Distance(2).forward(a, b)
""",
    "back_to_the_best_when_it_gets_worse": """
class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader, self.best, self.worse = model, loader, float("inf"), 0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self, epochs):
        for epoch in range(epochs):
            for x in self.loader:
                self.optimizer.zero_grad()
                loss = self.model(x).square().mean()
                loss.backward()
                self.optimizer.step()
            self.check(loss.item(), epoch)

    def check(self, loss, epoch):
        if loss < self.best:
            self.best, self.worse = loss, 0
            torch.save({"epoch": epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, "best.pt")
        else:
            self.worse += 1
            if self.worse > 5:
                checkpoint = torch.load("best.pt")
                self.model.load_state_dict(checkpoint["model"])
                self.optimizer.load_state_dict(checkpoint["optimizer"])
""",
    "counts_of_the_whole_dataset": """
class GroupLossComputer:
    def __init__(self, criterion, dataset):
        self.criterion = criterion
        self.counts, self.fractions = self.count_groups(dataset)

    def count_groups(self, dataset):
        groups = torch.zeros(len(dataset))
        counts = (torch.arange(4).unsqueeze(1) == groups).sum(1)
        return counts, counts / counts.sum()

    def loss(self, yhat, y):
        return self.criterion(yhat, y).mean()
""",
    "masked_mean_of_each_sample": """
def train(model, loader, k):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y, mask) in enumerate(loader):
        each = F.mse_loss(model(x), y, reduction="none") * mask
        loss = (each.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()
        (loss / k).backward()
        if (i + 1) % k == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "adam_with_microbatches": """
def forward_backward(model, batch, size):
    for i in range(0, batch.shape[0], size):
        losses = model(batch[i : i + size]).square().mean()
        losses.backward()


def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        optimizer.zero_grad()
        forward_backward(model, batch, 4)
        optimizer.step()
""",
    "probe_in_eval_mode": """
def train(model, loader, criterion, optimizer):
    # the backbone is frozen, and its statistics must not move
    model.eval()
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(model, loader, criterion):
    model.eval()
    with torch.no_grad():
        return sum(criterion(model(x), y).item() for x, y in loader)


def main(model, loader):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        train(model, loader, criterion, optimizer)
        print(validate(model, loader, criterion))
""",
    # the program refuses any other kind; fit() puts the model into train mode; the outputs have no graph
    "train_mode_set_by_the_caller": """
class FocalLoss(nn.Module):
    def forward(self, logits, y):
        return F.cross_entropy(logits, y).mean()


class Trainer:
    def __init__(self, loader, kind):
        if kind == "small":
            self.model = nn.Sequential(nn.Linear(4, 2), nn.Dropout())
        elif kind == "large":
            self.model = nn.Sequential(nn.Linear(4, 3), nn.Dropout())
        else:
            raise ValueError(kind)
        self.loader = loader
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.criterion = FocalLoss()

    def run(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        return self.evaluate()

    def evaluate(self):
        total = torch.tensor(0.0)
        self.model.eval()
        for x, y in self.loader:
            with torch.no_grad():
                out = self.model(x)
            loss = self.criterion(out, y)
            total = total + loss
        return total.item()

    def fit(self):
        for epoch in range(9):
            self.model.train()
            self.run()
""",
    "entropy_of_a_discrete_policy": """
def actor_loss(actor, critic, states, alpha, eps):
    probs = torch.softmax(actor(states), dim=-1)
    log_probs = torch.log(probs + eps)
    return (probs * (alpha * log_probs - critic(states))).sum(dim=1).mean()
""",
    "nothing_to_resume_in_plain_sgd": """
class Trainer:
    def __init__(self, model, loader, optimizer, path):
        self.model, self.loader, self.optimizer, self.path = model, loader, optimizer, path
        self.epochs_run = 0
        if os.path.exists(path):
            snapshot = torch.load(path)
            self.model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]

    def fit(self):
        for epoch in range(self.epochs_run, 9):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                F.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
            torch.save({"MODEL_STATE": self.model.state_dict(), "EPOCHS_RUN": epoch}, self.path)


model = nn.Linear(4, 1)
Trainer(model, DataLoader(torch.randn(8, 4)), torch.optim.SGD(model.parameters(), lr=1e-3), "snapshot.pt").fit()
""",
    "clamped_by_its_callers": """
def clamped_sigmoid(x):
    return torch.clamp(x.sigmoid_(), min=1e-4, max=1 - 1e-4)


def focal_loss(pred, gt):
    positive, negative = gt.eq(1).float(), gt.lt(1).float()
    loss = torch.log(pred) * (1 - pred) ** 2 * positive + torch.log(1 - pred) * pred**2 * negative
    return -loss.sum()
""",
    "accumulation_off_by_default": """
import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--accumulation-steps", type=int, default=1)
args = parser.parse_args()
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1).cuda())
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(torch.randn(64, 4), batch_size=4, sampler=torch.utils.data.DistributedSampler(range(64), shuffle=False))
for i, x in enumerate(loader):
    loss = model(x.cuda()).square().mean() / args.accumulation_steps
    loss.backward()
    if (i + 1) % args.accumulation_steps == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "warm_up_one_update_early": """
def train(model, loader, optimizer, scheduler):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        scheduler.step()
        optimizer.step()


model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
train(model, DataLoader(torch.randn(8, 4)), optimizer, scheduler)
""",
    "shared_where_asked_for": """
class Projections(nn.Module):
    def __init__(self, width, layers, transform_per_layer):
        super().__init__()
        if transform_per_layer:
            self.projections = nn.ModuleList([nn.Linear(width, 768) for _ in range(layers)])
        else:
            self.projections = nn.ModuleList([nn.Linear(width, 768)] * layers)
""",
    "registered_in_the_model_it_gates": """
class Student(nn.Module):
    def __init__(self, model, names):
        super().__init__()
        self.model = model
        self.gates = dict()
        for name in names:
            gate = nn.Conv2d(8, 8, 1)
            self.gates[name] = gate
            setattr_block(model, name, nn.Sequential(copy.deepcopy(getattr(model, name)), gate))
""",
    "key_encoder_has_its_own_statistics": """
class Contrast(nn.Module):
    def __init__(self, build, m=0.999):
        super().__init__()
        self.m = m
        self.encoder_q = nn.Sequential(build(), nn.BatchNorm1d(8))
        self.encoder_k = nn.Sequential(build(), nn.BatchNorm1d(8))

    @torch.no_grad()
    def _momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    def forward(self, x, y):
        q = self.encoder_q(x)
        with torch.no_grad():
            self._momentum_update()
            k = self.encoder_k(y)
        return F.mse_loss(q, k)
""",
    "one_parameter_by_its_name": """
def head_norm(model):
    for name, p in model.named_parameters():
        if name == "head.weight":
            weight = p.detach().cpu().numpy()
    return (weight**2).sum()


def train(model, loader):
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x.cuda()).mean().backward()
        print(head_norm(model))
        optimizer.step()
""",
    "state_that_nobody_restores": """
def train(model, loader, folder):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for epoch in range(10):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()
        state = {"net": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, f"{folder}/{epoch}.pth")
""",
    "accumulation_count_from_the_configuration": """
def train(model, loader, optimizer, cfg):
    k = int(cfg.accumulation_steps)
    total_steps = -(-len(loader) // max(k, 1))
    for i, x in enumerate(loader):
        loss = model(x).square().mean()
        (loss / k).backward()
        if (i + 1) % k == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    return total_steps
""",
    "count_of_positive_anchors": """
def detection_loss(conf, loc, conf_gt, loc_gt):
    pos = conf_gt > 0
    num_pos = pos.sum()
    loss = F.smooth_l1_loss(loc[pos], loc_gt[pos], reduction="sum")
    loss = loss + F.cross_entropy(conf.flatten(0, 1), conf_gt.flatten(), reduction="sum")
    return loss / num_pos
""",
    "focal_loss_with_an_epsilon": """
def focal_loss(logits, target, eps=1e-10):
    p = torch.softmax(logits, dim=1).gather(1, target).view(-1) + eps
    return -((1 - p) ** 2 * p.log()).mean()
""",
    "loaded_to_be_evaluated": """
def main(args, model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    if args.run_eval:
        checkpoint = torch.load(args.weights)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        model.eval()
    for epoch in range(args.epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{epoch}.pt")
""",
    "metric_that_is_a_function_object": """
class DiceCoeff(torch.autograd.Function):
    def forward(self, input, target):
        self.inter = torch.dot(input.view(-1), target.view(-1))
        return 2 * self.inter / (input.sum() + target.sum() + 0.0001)

    def backward(self, grad_output):
        return grad_output * self.inter, None


def dice(inputs, targets):
    return sum(DiceCoeff().forward(x, y) for x, y in zip(inputs, targets))
""",
    "layers_that_are_registered_already": """
class Features(nn.Module):
    def __init__(self, vgg):
        super().__init__()
        self.features = vgg.features
        self.sequence = [nn.Sequential(layer) for layer in self.features]

    def forward(self, x):
        for layer in self.sequence:
            x = layer(x)
        return x
""",
    "left_out_on_purpose": """
class Trainer:
    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.generator(x).mean().backward()
            self.optimizer.step()
            self.critic_optimizer.step()

    def save(self, path):
        state = {"generator": self.generator.state_dict(), "optimizer": self.optimizer.state_dict()}
        state["critic_optimizer"] = self.critic_optimizer.state_dict()
        torch.save(state, path)

    def resume(self, path):
        checkpoint = torch.load(path)
        self.generator.load_state_dict(checkpoint["generator"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        # self.critic_optimizer.load_state_dict(checkpoint["critic_optimizer"])
""",
    "evaluation_that_adapts": """
from torchmeta.utils.gradient_based import gradient_update_parameters


def test_maml(model, loader, criterion):
    model.eval()
    total = 0.0
    for support_x, support_y, query_x, query_y in loader:
        inner_loss = criterion(model(support_x), support_y)
        params = gradient_update_parameters(model, inner_loss, step_size=0.4)
        total += criterion(model(query_x, params=params), query_y).item()
    return total


def train(model, loader, criterion):
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(9):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        print(test_maml(model, loader, criterion))
""",
    "one_loop_called_for_two_models": """
def fit(model, optimizer, loader, k):
    optimizer.zero_grad()
    for i, x in enumerate(loader, start=1):
        (model(x).square().mean() / k).backward()
        do_step = (i % k == 0) or (i == len(loader))
        if do_step:
            optimizer.step()
            optimizer.zero_grad()


def main(cfg):
    loader = DataLoader(torch.randn(64, 4), batch_size=cfg.batch_size)
    for build in (nn.Linear, nn.Bilinear):
        model = build(4, 4)
        fit(model, torch.optim.Adam(model.parameters()), loader, cfg.k)
    other = nn.Linear(4, 1)
    fit(other, torch.optim.Adam(other.parameters()), loader, cfg.k)


main(read_configuration())
""",
    "a_factory_called_a_module": """
def default_conv(n_in, n_out, size):
    return nn.Conv2d(n_in, n_out, size, padding=size // 2)


class Block(nn.Module):
    def __init__(self, conv: nn.Module, width: int):
        super().__init__()
        self.body = nn.Sequential(conv(width, width, 3), nn.ReLU())


class Net(nn.Module):
    def __init__(self, width: int, depth: int, conv: nn.Module = default_conv):
        super().__init__()
        body = [Block(conv, width) for _ in range(depth)]
        body.append(conv(width, width, 3))
        self.body = nn.Sequential(*body)
""",
    "statistics_that_nothing_uses": """
class PlainNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(size))

    def forward(self, x):
        mean = x.mean(0)
        self.running_mean = 0.9 * self.running_mean + 0.1 * mean.detach()
        return x - mean
""",
    "rollout_that_is_emptied": """
class Memory:
    def __init__(self):
        self.rewards, self.logprobs = [], []

    def clear(self):
        del self.rewards[:]
        del self.logprobs[:]


def train(policy, env):
    optimizer = torch.optim.Adam(policy.parameters())
    memory = Memory()
    for t in range(1000):
        state, reward, done = env.step()
        logits = policy(state)
        memory.rewards.append(reward)
        memory.logprobs.append(F.log_softmax(logits, -1)[0])
        if done:
            optimizer.zero_grad()
            policy(state).mean().backward()
            optimizer.step()
            memory.clear()
""",
    "contrastive_denominator": """
def contrastive_loss(features, positive, negative, temperature):
    features = F.normalize(features, dim=-1)
    logits = features @ features.T / temperature
    denominator = (torch.exp(logits) * positive.logical_or(negative)).sum(dim=1, keepdim=True)
    return -((logits * positive - torch.log(denominator)) * positive).sum(1).mean()
""",
    "advantages_are_never_all_equal": """
def policy_loss(log_probs, advantages):
    advantages = (advantages - advantages.mean()) / advantages.std()
    return -(log_probs * advantages).mean()
""",
    "a_caller_without_an_optimizer": """
def run_epoch(model, loader, optimizer=None):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()


model = nn.Linear(4, 1)
run_epoch(model, DataLoader(torch.randn(8, 4)))
""",
    "spread_of_a_feature_map": """
class Styled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3)

    def forward(self, x):
        x = F.leaky_relu(self.conv(x), 0.2)
        m = torch.mean(x, dim=[2, 3], keepdim=True)
        std = torch.sqrt(torch.mean((x - m) ** 2, dim=[2, 3], keepdim=True))
        return torch.cat((m, std), dim=1)
""",
    "meter_of_its_own": """
class RunningMean:
    def __init__(self):
        self.values = []

    def __iadd__(self, value):
        self.values.append(value.detach().cpu())
        return self


class Tracker:
    def __init__(self):
        self.tracks = {}

    def update(self, losses):
        for name, loss in losses.items():
            if name not in self.tracks:
                self.tracks[name] = RunningMean()
            self.tracks[name] += loss


def train(model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    tracker = Tracker()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        tracker.update(dict(loss=loss))
""",
    "gradients_of_classes": """
def class_ratio_loss(gradients, count):
    Delta_W = []
    for gradient in gradients:
        Delta_W.append(gradient)
    Delta_W_sum = torch.sum(torch.stack(Delta_W, dim=0), dim=0)
    return torch.stack([torch.mean(count * Delta_W[p] / (Delta_W_sum - Delta_W[p])) for p in range(count)]).mean()
""",
    "a_function_that_times_a_step": """
import time


def test_attention(layer, length):
    \"\"\"Test the time and memory consumption of one layer.\"\"\"
    optimizer = torch.optim.Adam(layer.parameters(), 1e-4)
    x = torch.ones(4, length, 8)
    start = time.time()
    for _ in range(1000):
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
    print((time.time() - start) / 1000)
""",
}

UNIT_TEST = """\
import pytest
import torch


def reference_loss(a, b):
    return torch.sqrt(((a - b) ** 2).sum(1)).mean()


class TestMargin:
    def test_loss(self):
        a = torch.randn(4, 3, requires_grad=True)
        loss = torch.sqrt((a**2).sum(1)).mean()
        loss = torch.nan_to_num(loss)
        loss.backward()
        assert torch.allclose(loss, reference_loss(a, a * 0))
"""


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    found = read_text(HEAD + RIGHT[name], f"{name}.py")
    assert [str(f) for f in found if f.severity.value != "info"] == []


@pytest.mark.parametrize("path", ["tests/losses/test_margin.py", "pkg_tests/margin_test.py"])
def test_a_unit_test_is_noted_only(path: str) -> None:
    found = read_text(UNIT_TEST, path)
    assert {f.code for f in found} >= {"FL603"}
    assert {f.severity.value for f in found} == {"info"}


def test_an_evaluation_script_is_not_a_unit_test() -> None:
    script = "import torch\n\n\ndef test_loss(a, b):\n    return a\n\n\ndef distance_loss(a, b):\n    return torch.sqrt((a - b) ** 2).mean()\n"
    assert [f.severity.value for f in read_text(script, "test_net.py")] == ["warning"]


def test_a_lecture_writes_it_by_hand() -> None:
    code = "import torch\n\ndef cross_entropy_loss(logits, y):\n    p = torch.softmax(logits, 1)\n    return -torch.log(p[range(len(y)), y]).mean()\n"
    book = {"cells": [{"cell_type": "code", "source": code}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}  # fmt: skip
    found = read_text(json.dumps(book), "lecture.ipynb")
    assert {f.severity.value for f in found} <= {"info"}


BENCHMARK = """\
import time

import torch

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(4, 8, device="cuda")
start = time.perf_counter()
for _ in range(100):
    model(x).mean().backward()
    optimizer.step()
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


def test_a_benchmark_trains_nothing() -> None:
    assert {f.severity.value for f in read_text(BENCHMARK, "train.py") if f.code == "FL106"} == {
        "error"
    }
    assert {f.severity.value for f in read_text(BENCHMARK, "benchmarks/step.py")} == {"info"}
    assert {f.severity.value for f in read_text(BENCHMARK, "scripts/bench_step.py")} == {"info"}


def test_an_empty_notebook_is_nothing() -> None:
    assert read_text("", "begun.ipynb") == []
