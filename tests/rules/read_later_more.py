"""More of them: attention, schedules, trainers."""

from __future__ import annotations

WRONG = {
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
