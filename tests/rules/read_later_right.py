"""Right code that looks like those mistakes."""

from __future__ import annotations

RIGHT = {
    "what follows the mode, and what is detached": """\
import torch
from torch import nn


class EmbeddingDropout(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout, self.running, self.hidden = dropout, 0.0, None

    def forward(self, x):
        self.running = 0.9 * self.running + 0.1 * x.mean().detach()
        self.table = self.table.to(x.device)
        self.count = self.count + len(x)
        with torch.no_grad():
            self.lowest = torch.min(self.lowest, x.amin())
        if not self.training:
            return x
        return x * x.new_empty(x.size(1), 1).bernoulli_(1 - self.dropout)
""",
    "several optimizers, and a loss that is divided": """\
import torch


class Trainer:
    def __init__(self, model, optimizers, accumulate=1):
        self.model, self.optimizers, self.accumulate = model, optimizers, accumulate

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for index, batch in enumerate(loader):
                loss = self.model(batch)["loss"] / self.accumulate
                loss.backward()
                if (index + 1) % self.accumulate == 0:
                    for optimizer in self.optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
""",
    "state that arrives, and codes along their dimension": """\
import torch
import torch.nn.functional as F
from torch import einsum, nn


class Trainer:
    def save(self, step):
        torch.save({"step": step, "model": self.model.state_dict()}, "last.pt")

    def load(self, strict):
        data = torch.load("last.pt")
        self.step = data["step"]
        state = self.model.state_dict()
        state.update(data["model"])
        self.model.load_state_dict(state)


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.codebook = nn.Embedding(16, 8)

    def forward(self, logits):
        one_hot = F.gumbel_softmax(logits, tau=1.0, dim=1)
        return einsum("b n h w, n d -> b d h w", one_hot, self.codebook.weight)


def load_if_available(path, model, optimizer=None, scheduler=None):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    for name, thing in (("optimizer", optimizer), ("scheduler", scheduler)):
        if thing is not None:
            thing.load_state_dict(saved[name])


def run(model, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    load_if_available("last.pt", model, optimizer)
""",
    "a loss divided by tokens and by passes": """\
import torch


def train(model, batches, passes, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        for num_passes in range(passes):
            inputs, targets = next(batches)
            total = model(inputs, targets, reduction="none").sum()
            tokens = (targets >= 0).sum().clamp(min=1)
            loss = total / (tokens * passes * num_passes)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "a running value that is detached first, and weights of losses in a log": """\
import torch
from engine import FusedAttention


class Decoder(FusedAttention):
    def clear_buffer(self):
        self.seen = None

    def forward(self, words):
        self.seen = self.seen + self.embed(words)
        return self.seen


class Watched(FusedAttention):
    def forward(self, query, key):
        out, top = super().forward(query, key)
        top = top.detach()
        self.largest = torch.max(self.largest, top)
        return out


def step(model, batch, schedule):
    kl_loss, recon_loss = model(batch)
    kl_loss_weight = schedule(batch)
    loss = kl_loss * kl_loss_weight + recon_loss
    logs = {"loss": loss.detach(), "kl": kl_loss.detach(), "recon": recon_loss.detach(), "weight": kl_loss_weight}
    return loss, logs
""",
    "a clip in the arm that does not scale": """\
import torch


def update(model, optimizer, loss, scaler: torch.amp.GradScaler, half):
    if not half:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "a test loop whose mode is set": """\
import torch
from torch import nn


def evaluate(model, test_loader):
    return sum((model(x).argmax(1) == y).sum().item() for x, y in test_loader)


def main(model, train_loader, test_loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in test_loader:
                print((model(x).argmax(1) == y).sum().item())
""",
    "a schedule that Accelerate counts": """\
import math

from accelerate import Accelerator
from diffusers.optimization import get_scheduler


def main(args, model, optimizer, loader):
    accelerator = Accelerator()
    shared = math.ceil(len(loader) / accelerator.num_processes)
    steps = args.epochs * math.ceil(shared / args.accumulation) * accelerator.num_processes
    scheduler = get_scheduler(args.schedule, optimizer=optimizer, num_training_steps=steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
""",
    "labels that are shifted once": """\
from transformers import PreTrainedModel


class SmallForCausalLM(PreTrainedModel):
    def forward(self, ids, labels=None):
        logits = self.head(self.body(ids))
        return self.loss_function(logits, labels, vocab_size=10)


class SmallForConditionalGeneration(PreTrainedModel):
    def forward(self, ids, labels=None, **kwargs):
        logits = self.head(self.body(ids, self.shift_right(labels)))
        return self.loss_function(logits=logits, labels=None, shift_labels=labels, vocab_size=10)
""",
    "attention, and an assignment to clusters": """\
import torch
import torch.nn.functional as F


def attend(query, key, value, dropout):
    attention = dropout(F.softmax(torch.bmm(query, key.transpose(1, 2)), dim=2))
    return torch.bmm(attention, value) + torch.softmax(query @ key.mT, dim=-1) @ value


def pooled(scores, features):
    soft_assign = F.softmax(scores, dim=1)
    return torch.einsum("bkn,bnd->bkd", soft_assign, features)


def attend_by_letters(scores, values):
    attention = scores.softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", attention, values)
""",
    "apex, as it is meant": """\
import torch
from apex import amp


def train(model, loader, level):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    for epoch in range(3):
        for x in loader:
            optimizer.zero_grad()
            with amp.scale_loss(model(x).mean(), optimizer) as scaled:
                scaled.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "amp": amp.state_dict(), "epoch": epoch}, "last.pt")
""",
    "apex at the level that keeps the model's own parameters": """\
import torch
from apex import amp


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x in loader:
        optimizer.zero_grad()
        with amp.scale_loss(model(x).mean(), optimizer) as scaled:
            scaled.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
    "positions that begin again, and an epoch that is counted on": """\
import torch


def batches(files, resume_state):
    at = resume_state["file"] if resume_state is not None else 0
    while True:
        while at < len(files):
            yield torch.load(files[at])
            at += 1
        at = 0


def main(model, loader, resume):
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if resume:
        checkpoint = torch.load(resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, 10):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, "last.pt")
""",
}
