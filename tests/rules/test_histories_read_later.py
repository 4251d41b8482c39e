"""Mistakes in the shape of repairs that were missed when they were first read, and right code that looks like them."""

from __future__ import annotations

import pytest

from fallline.verdict.reading import read_text

WRONG = {
    "attention that is normalised over the heads and summed over the sequence": (
        "FL609",
        """\
import torch
from torch import nn


class AdditiveAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.query, self.score = nn.Linear(width, width), nn.Linear(width, heads)
        self.heads = heads

    def forward(self, x):
        q = self.query(x)
        alphas = (self.score(q) / 2.0).softmax(dim=-1)  # here
        split = q.unflatten(-1, (self.heads, -1))
        return torch.einsum("b s h, b s h d -> b h d", alphas, split)
""",
    ),
    "attention of a batch that is normalised over the queries": (
        "FL609",
        """\
import torch
import torch.nn.functional as F


def attend(query, key, value, dropout):
    scores = torch.bmm(query, key.transpose(1, 2))
    attention = F.softmax(scores, dim=1)  # here
    attention = dropout(attention)
    return torch.bmm(attention, value)
""",
    ),
    "a checkpoint without the loss scale of apex": (
        "FL701",
        """\
import torch
from apex import amp


def package(model, optimizer=None, epoch=None):
    state = {"state_dict": model.state_dict()}
    if optimizer is not None:
        state["optim_dict"] = optimizer.state_dict()
    if epoch is not None:
        state["epoch"] = epoch + 1
    return state


def train(model, optim, loader, resume):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for epoch in range(3):
        for x in loader:
            optimizer.zero_grad()
            with amp.scale_loss(model(x).mean(), optimizer) as scaled:
                scaled.backward()
            optimizer.step()
        torch.save(package(model, optimizer=optimizer, epoch=epoch), "last.pt")  # here
""",
    ),
    "a clip of the parameters that apex copies": (
        "FL201",
        """\
import torch
from apex import amp


def train(model, loader, level):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
        optimizer.step()
""",
    ),
    "a clip inside apex's scaling": (
        "FL201",
        """\
import torch
from apex import amp


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)  # here
        optimizer.step()
""",
    ),
    "a position that no later pass sets back": (
        "FL707",
        """\
import torch


def batches(files, resume_state):
    at = resume_state["file"] if resume_state is not None else 0
    while True:
        while at < len(files):  # here
            yield torch.load(files[at])
            at += 1
""",
    ),
    "the finished epoch is trained again": (
        "FL707",
        """\
import torch


def main(model, loader, resume):
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if resume:
        checkpoint = torch.load(resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"]  # here
    for epoch in range(start, 10):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, "last.pt")
""",
    ),
    "several optimizers that somebody else makes": (
        "FL104",
        """\
import torch


class Trainer:
    def __init__(self, model, optimizers, accumulate=1):
        self.model, self.optimizers, self.accumulate = model, optimizers, accumulate

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for index, batch in enumerate(loader):
                self.run_batch(batch, index)

    def run_batch(self, batch, index):
        loss = self.model(batch)["loss"]
        loss.backward()  # here
        if (index + 1) % self.accumulate == 0:
            for optimizer in self.optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
""",
    ),
    "a clip in a method of its own, before the scaler's step": (
        "FL201",
        """\
import torch
from torch import nn


class Trainer(nn.Module):
    def __init__(self, models):
        super().__init__()
        for index, model in enumerate(models):
            setattr(self, f"optimizer{index}", torch.optim.AdamW(model.parameters()))
            setattr(self, f"scaler{index}", torch.amp.GradScaler("cuda"))

    def update(self, model, index):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
        optimizer, scaler = getattr(self, f"optimizer{index}"), getattr(self, f"scaler{index}")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    ),
    "state that goes into a copy": (
        "FL702",
        """\
import torch


def load(ema, path):
    ema.state_dict().update(torch.load(path))  # here
""",
    ),
    "a model that its own state replaces": (
        "FL702",
        """\
import torch


class Trainer:
    def save(self, step):
        torch.save({"step": step, "model": self.model.state_dict()}, "last.pt")

    def load(self):
        data = torch.load("last.pt")
        self.step = data["step"]
        self.model = data["model"]  # here
""",
    ),
    "a scheduler that the resume is not given": (
        "FL702",
        """\
import torch


def load_if_available(path, model, optimizer=None, scheduler=None):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    for name, thing in (("optimizer", optimizer), ("scheduler", scheduler)):
        if thing is not None:
            thing.load_state_dict(saved[name])


def run(model, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    load_if_available("last.pt", model, optimizer)  # here
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        scheduler.step()
""",
    ),
    "codes that are chosen along the width": (
        "FL609",
        """\
import torch.nn.functional as F
from torch import einsum, nn


class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.codebook = nn.Embedding(16, 8)

    def forward(self, logits):
        one_hot = F.gumbel_softmax(logits, tau=1.0)  # here
        return einsum("b n h w, n d -> b d h w", one_hot, self.codebook.weight)
""",
    ),
    "a validation whose labels are not shifted": (
        "FL012",
        """\
from torch.nn.functional import cross_entropy


def validate(model, data):
    ids, targets = data.next()
    logits = model(ids)
    return cross_entropy(logits, targets)  # here


def train(model, optimizer, data):
    ids, targets = data.next()
    logits = model(ids)
    loss = cross_entropy(logits[..., :-1, :], targets[..., 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    ),
    "a hook that makes zeros of NaN": (
        "FL608",
        """\
import torch


def prepare(model):
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: torch.nan_to_num(grad))  # here
""",
    ),
    "a schedule that counts micro-batches, which Accelerate does not": (
        "FL130",
        """\
from accelerate import Accelerator
from diffusers.optimization import get_scheduler


def main(args, model, optimizer, loader):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    scheduler = get_scheduler(
        args.schedule,
        optimizer=optimizer,
        num_training_steps=args.max_train_steps * args.gradient_accumulation_steps,  # here
    )
    return accelerator.prepare(model, optimizer, loader, scheduler)
""",
    ),
    "a dropout that is written by hand": (
        "FL805",
        """\
from torch import nn


class EmbeddingDropout(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout

    def forward(self, x):
        mask = x.new_empty(x.size(1), 1).bernoulli_(1 - self.dropout)  # here
        return mask * x / (1 - self.dropout)
""",
    ),
    "layers that are dropped in every mode": (
        "FL805",
        """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.layerdrop = nn.Linear(2, 2), 0.1

    def forward(self, x):
        if torch.rand(1).item() < self.layerdrop:  # here
            return x
        return self.layer(x)
""",
    ),
    "a copy of the sampler that a helper chooses": (
        "FL303",
        """\
import math

import torch
from torch import distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.sampler import RandomSampler, Sampler


class DistributedSampler(Sampler):
    def __init__(self, dataset, shuffle=True):
        self.dataset, self.shuffle, self.epoch = dataset, shuffle, 0
        self.world, self.rank = dist.get_world_size(), dist.get_rank()

    def __iter__(self):
        order = list(range(len(self.dataset)))
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self.epoch)
            order = torch.randperm(len(self.dataset), generator=generator).tolist()
        return iter(order[self.rank :: self.world])

    def __len__(self):
        return math.ceil(len(self.dataset) / self.world)

    def set_epoch(self, epoch):
        self.epoch = epoch


def make_sampler(dataset, shuffle, distributed):
    if distributed:
        return DistributedSampler(dataset, shuffle=shuffle)  # here
    return RandomSampler(dataset)


def train(model, optimizer, loader):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main(args, dataset, model):
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=8, sampler=make_sampler(dataset, True, args.distributed))
    for epoch in range(args.epochs):
        train(model, optimizer, loader)
""",
    ),
    "log-probabilities that were collected under no_grad": (
        "FL022",
        """\
import torch
from torch.distributions import Categorical


def rollout(policy, env, length):
    rewards, logps, states = [], [], []
    state = env.reset()
    for _ in range(length):
        with torch.no_grad():
            chances = Categorical(logits=policy(state))
            action = chances.sample()
            logp = chances.log_prob(action)
        states.append(state)
        state, reward = env.step(action)
        rewards.append(reward)
        logps.append(logp.unsqueeze(0))
    return torch.tensor(rewards), torch.cat(logps), torch.stack(states)


def policy_loss(critic, rewards, logprobs, states):
    advantages = rewards - critic(states).squeeze(-1)
    norm_adv = (advantages - advantages.mean()).detach()
    actor_loss = (-norm_adv * logprobs).mean()  # here
    return actor_loss + advantages.pow(2).mean()


def train(policy, critic, env, optimizer):
    for step in range(1000):
        rewards, logprobs, states = rollout(policy, env, 200)
        optimizer.zero_grad()
        policy_loss(critic, rewards, logprobs, states).backward()
        optimizer.step()
""",
    ),
    "a resume that forgets the best so far": (
        "FL702",
        """\
import torch


def main(args, model, loader, evaluate):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume)  # here
        start = checkpoint["epoch"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    best_acc = 0.0
    for epoch in range(start, args.epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = evaluate(model)
        is_best = accuracy > best_acc
        best_acc = max(accuracy, best_acc)
        state = {"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "best_acc": best_acc}
        torch.save(state, "last.pt")
        if is_best:
            torch.save(model.state_dict(), "best.pt")
""",
    ),
    "a running value that keeps every graph": (
        "FL401",
        """\
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.largest = None

    def forward(self, scores):
        top = scores.abs().amax()
        if self.largest is None:
            self.largest = top
        else:
            self.largest = torch.max(self.largest, top)  # here
        return scores / self.largest
""",
    ),
    "a running value of what a class elsewhere computes": (
        "FL401",
        """\
import torch
from engine import FusedAttention


class Watched(FusedAttention):
    def forward(self, query, key):
        out, top = super().forward(query, key)
        if self.largest is None:
            self.largest = top
        else:
            self.largest = torch.max(self.largest, top)  # here
        return out
""",
    ),
    "a test loop in a file that never leaves train mode": (
        "FL809",
        """\
import torch
from torch import nn


def main(model, train_loader, test_loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        right = 0
        for x, y in test_loader:  # here
            right += (model(x).argmax(1) == y).sum().item()
        print(right)
""",
    ),
    "a scheduler that Accelerate does not prepare": (
        "FL130",
        """\
import torch
from accelerate import Accelerator
from transformers import get_linear_schedule_with_warmup


def train(model, dataset, epochs, batch_size, largest):
    accelerator = Accelerator()
    accumulation_steps = batch_size // largest
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size // accumulation_steps)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = len(loader) * epochs
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, steps)  # here
    for epoch in range(epochs):
        for step, batch in enumerate(loader):
            loss = model(**batch).loss / accumulation_steps
            accelerator.backward(loss)
            if step % accumulation_steps == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
""",
    ),
    "a schedule sized before the loader is split": (
        "FL130",
        """\
import math

from accelerate import Accelerator
from diffusers.optimization import get_scheduler


def main(args, model, optimizer, loader):
    accelerator = Accelerator()
    updates = math.ceil(len(loader) / args.accumulation)
    if args.max_steps is None:
        args.max_steps = args.epochs * updates
    scheduler = get_scheduler(args.schedule, optimizer=optimizer, num_training_steps=args.max_steps * accelerator.num_processes)  # here
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
""",
    ),
    "the scheduler of a Trainer, before the optimizer": (
        "FL109",
        """\
import torch
from accelerate import Accelerator
from transformers import Trainer
from transformers.trainer_callback import CallbackHandler


class PolicyTrainer(Trainer):
    def __init__(self, args, model, dataset, optimizers=(None, None)):
        self.args, self.model = args, model
        self.optimizer, self.lr_scheduler = optimizers
        self.accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
        self.create_optimizer_and_scheduler(num_training_steps=args.updates)
        self.handler = CallbackHandler([], self.model, None, self.optimizer, self.lr_scheduler)
        self.loader = torch.utils.data.DataLoader(dataset, batch_size=8)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.model, self.optimizer, self.loader)

    def train(self):
        model, optimizer, batches = self.model, self.optimizer, iter(self.loader)
        for update in range(self.args.updates):
            self.lr_scheduler.step()  # here
            batch = next(batches)
            for start in range(0, self.args.batch_size, self.args.micro_batch_size):
                with self.accelerator.accumulate(model):
                    loss = model(batch).pow(2).mean()
                    self.accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
""",
    ),
    "labels that the loss function shifts again": (
        "FL012",
        """\
from transformers import PreTrainedModel


class SmallForCausalLM(PreTrainedModel):
    def forward(self, ids, labels=None):
        logits = self.head(self.body(ids))
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()  # here
        shift_labels = shift_labels.view(-1).to(logits.device)
        return self.loss_function(shift_logits.view(-1, 10), shift_labels, vocab_size=10)
""",
    ),
    "labels of an encoder-decoder, which are in step already": (
        "FL012",
        """\
from transformers import PreTrainedModel


def shift_tokens_right(ids, pad, start):
    moved = ids.new_zeros(ids.shape)
    moved[:, 1:], moved[:, 0] = ids[:, :-1].clone(), start
    return moved


class SmallForConditionalGeneration(PreTrainedModel):
    def forward(self, ids, labels=None, **kwargs):
        inputs = shift_tokens_right(labels, 0, 1)
        logits = self.head(self.body(ids, inputs))
        return self.loss_function(logits=logits, labels=labels, vocab_size=10, **kwargs)  # here
""",
    ),
    "a mask of pairs without the pair itself": (
        "FL602",
        """\
import torch
from torch import nn


class ContrastiveLoss(nn.Module):
    def forward(self, similarity, labels):
        mask = torch.eq(labels, labels.T).float()
        others_mask = torch.scatter(torch.ones_like(mask), 1, torch.arange(len(mask)).view(-1, 1), 0)
        mask = mask * others_mask
        log_prob = similarity.log_softmax(1)
        return -((mask * log_prob).sum(1) / mask.sum(1)).mean()  # here
""",
    ),
}

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
NEW = frozenset(code for code, _ in WRONG.values())


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found(name: str) -> None:
    code, text = WRONG[name]
    line = next(i for i, row in enumerate(text.splitlines(), 1) if row.endswith("# here"))
    assert line in [f.at.line for f in read_text(text) if f.code == code]


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_like_it_is_silent(name: str) -> None:
    found = [(f.code, f.at.line, f.severity) for f in read_text(RIGHT[name]) if f.code in NEW]
    assert [f for f in found if f[2].value != "info" or f[0] == "FL707"] == []
