"""Mistakes in classes and helpers whose loop is not in view."""

from __future__ import annotations

WRONG = {
    "the epoch stops at a wrapped batch sampler": (
        "FL303",
        """\
from torch.utils.data import BatchSampler, DataLoader


class SkipBatchSampler(BatchSampler):
    def __init__(self, batch_sampler, skip):
        self.batch_sampler = batch_sampler
        self.skip = skip

    def __iter__(self):
        for index, batch in enumerate(self.batch_sampler):
            if index >= self.skip:
                yield batch


class Loader(DataLoader):
    def set_epoch(self, epoch):
        if hasattr(self.batch_sampler, "sampler"):
            self.batch_sampler.sampler.set_epoch(epoch)  # here
""",
    ),
    "a scaler that lives for one epoch": (
        "FL701",
        """\
import torch
from project.io import save_checkpoint


def train(model, optimizer, loader, epoch):
    scaler = torch.amp.GradScaler()  # here
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    save_checkpoint(model, optimizer, epoch, "last.pt")


def main(args, model, optimizer):
    if args.restore_path:
        checkpoint = torch.load(args.restore_path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
""",
    ),
    "a scaler that a helper saves and nobody loads": (
        "FL702",
        """\
import torch
from project.io import save_checkpoint


def train(model, optimizer, scaler, loader, epoch):
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    save_checkpoint(model, optimizer, epoch, "last.pt", scaler=scaler.state_dict())


def main(args, model, optimizer):
    if args.restore_path:
        checkpoint = torch.load(args.restore_path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])  # here
""",
    ),
    "a checkpointer without the optimizer": (
        "FL701",
        """\
import torch
from fvcore.common.checkpoint import Checkpointer


def setup(cfg, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpointer = Checkpointer(model, cfg.folder)  # here
    return optimizer, checkpointer
""",
    ),
    "shifted labels under the name of plain ones": (
        "FL012",
        """\
import torch


def train(model, optimizer, loader):
    for batch in loader:
        if "shift_labels" in batch:
            batch["labels"] = batch.pop("shift_labels")  # here
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    "labels stored shifted for a model that shifts": (
        "FL012",
        """\
import numpy as np
from transformers import GPT2LMHeadModel


def encode(texts, length):
    ids = np.zeros((len(texts), length))
    labels = np.full((len(texts), length), -100)
    for i, text in enumerate(texts):
        ids[i, :len(text)] = text
        labels[i, :len(text) - 1] = text[1:]  # here
    return ids, labels


def train(texts):
    model = GPT2LMHeadModel.from_pretrained("gpt2")
    ids, labels = encode(texts, 128)
    return model(ids, labels=labels)
""",
    ),
    "the prompt is masked one label too far": (
        "FL012",
        """\
import torch


def sample(tokens, prompt_tokens):
    inputs = tokens[:-1]
    labels = tokens[1:]
    end = min(len(prompt_tokens), len(labels))
    labels[:end] = [-100] * end  # here
    return inputs, labels
""",
    ),
    "schedulers in a different order from their optimizers": (
        "FL134",
        """\
import torch


def get_schedulers(config, optimizers):
    scheduler_g = torch.optim.lr_scheduler.ExponentialLR(optimizers[0], config.gamma)  # here
    scheduler_d = torch.optim.lr_scheduler.ExponentialLR(optimizers[1], config.gamma)
    return [scheduler_d, scheduler_g]
""",
    ),
    "a trainer that gets the scheduler and not its optimizer": (
        "FL134",
        """\
import torch
from trl import PPOTrainer


def build(config, model):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    return PPOTrainer(config=config, model=model, lr_scheduler=scheduler)  # here
""",
    ),
    "a state that only rank 0 has, saved by all": (
        "FL305",
        """\
import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, path):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    torch.save(state, path)  # here
""",
    ),
    "DeepSpeed steps once a window": (
        "FL105",
        """\
import deepspeed


def train(model, config, loader, k):
    engine, optimizer, _, _ = deepspeed.initialize(model=model, config=config)
    for i, batch in enumerate(loader):
        loss = engine(batch).mean()
        engine.backward(loss)  # here
        if (i + 1) % k == 0:
            engine.step()
""",
    ),
    "a term beside a loss that counts the window's tokens": (
        "FL104",
        """\
from transformers import Trainer


class MoeTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = outputs.loss.sum() / num_items_in_batch
        loss = loss + self.args.coefficient * outputs.aux_loss  # here
        return (loss, outputs) if return_outputs else loss
""",
    ),
    "lengths that are divided by twice": (
        "FL129",
        """\
import torch


def chosen(logps, length, size, average):
    if average:
        logps = logps / length
    good, bad = logps.split(size)
    good_length, _ = length.split(size)
    return good, bad, good / good_length  # here
""",
    ),
    "a validation now and then that stays in eval mode": (
        "FL804",
        """\
import torch


class Executor:
    def train(self, model, optimizer, loader, checks):
        model.train()
        for i, x in enumerate(loader):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            if self.step % 1000 == 0 and self.step != 0:
                self.validate(model, checks)
            self.step += 1

    def validate(self, model, checks):
        model.eval()  # here
        with torch.no_grad():
            return sum(model(x).mean().item() for x in checks)
""",
    ),
    "a last step without the scaler's update": (
        "FL204",
        """\
import torch


def train(model, optimizer, scaler, loader, k):
    batches = iter(loader)
    count = 0
    while True:
        try:
            x = next(batches)
        except StopIteration:
            if count % k:
                scaler.step(optimizer)  # here
                optimizer.zero_grad()
            break
        count += 1
        scaler.scale(model(x).mean() / k).backward()
        if count % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
    ),
    "one entry of the statistics keeps its graph": (
        "FL401",
        """\
import torch


def loss(logprobs, old_logprobs, advantages, values, returns):
    ratio = torch.exp(logprobs - old_logprobs)
    pg_loss = -(advantages * ratio).mean()
    vf_loss = (values - returns).pow(2).mean()
    stats = dict(
        policy=pg_loss.detach(),
        value=vf_loss.detach(),
        advantages=advantages.detach(),
        ratio=ratio,  # here
    )
    return pg_loss + vf_loss, stats
""",
    ),
    "a step that has had its backward hands out the graph": (
        "FL401",
        """\
import torch


def update(model, optimizer, x, y):
    optimizer.zero_grad()
    error = model(x) - y
    loss = error.pow(2).mean()
    loss.backward()
    optimizer.step()
    stats = {
        "loss": loss,  # here
        "error": error.detach(),
        "largest": error.max().detach(),
        "smallest": error.min().detach(),
    }
    return stats
""",
    ),
    "a training step that keeps what it returns": (
        "FL401",
        """\
import lightning as L


class Model(L.LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self(x) - y).pow(2).mean()
        self.outputs.append(loss)  # here
        return loss
""",
    ),
    "a running average in a dict": (
        "FL401",
        """\
import torch


class Average:
    def __init__(self):
        self.values = {"loss": 0}

    def update(self, name, value):
        self.values[name] = self.values[name] * 0.9 + value  # here


def train(model, criterion, optimizer, loader):
    model.train()
    average = Average()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        average.update("loss", loss)
""",
    ),
    "losses are added to a table": (
        "FL401",
        """\
import torch


def train(model, optimizer, loader):
    model.train()
    table = torch.zeros(10)
    for x, y, bucket in loader:
        losses = (model(x) - y).pow(2).mean(dim=1)
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        table.index_add_(0, bucket, losses)  # here
""",
    ),
    "a softmax without a dimension over three of them": (
        "FL609",
        """\
import torch.nn.functional as F


def scores(logits):
    found = F.softmax(logits)[:, :, :-1]  # here
    return found.max(dim=-1)
""",
    ),
    "a loss of its own in the Trainer's hands": (
        "FL104",
        """\
from transformers import Trainer


class PreferenceTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # here
        loss, metrics = self.preference_loss(model, inputs)
        return (loss, metrics) if return_outputs else loss
""",
    ),
    "a clip before the backward of an optimizer that the model makes": (
        "FL102",
        """\
import torch


class Trainer:
    def run(self, model, config):
        self.optimizer = model.configure_optimizers(config)
        for x, y in self.loader:
            logits, loss = model(x, y)
            model.zero_grad(set_to_none=True)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)  # here
            loss.backward()
            self.optimizer.step()
""",
    ),
    "a sampler that is printed and never told the epoch": (
        "FL303",
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler


def main(model, data, optimizer, epochs):
    sampler = DistributedSampler(data, shuffle=True)  # here
    print("sampler = %s" % str(sampler))
    loader = DataLoader(data, sampler=sampler)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
""",
    ),
    "a list of layers that a function makes": (
        "FL801",
        """\
from torch import nn


def conv(channels):
    return nn.Conv1d(channels, channels, 3)


class Block(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.convs = [conv(size) for size in sizes]  # here

    def forward(self, x):
        return [c(x) for c in self.convs]
""",
    ),
    "a divided sum whose loss a helper pads": (
        "FL104",
        """\
import torch
from torch import nn

from elsewhere import pad_input


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_and_backward(self, batch, world_size):
        losses = nn.functional.cross_entropy(self.model(batch["x"]), batch["y"], reduction="none")
        losses = pad_input(losses)
        loss = torch.sum(losses) / torch.sum(batch["mask"]) * world_size
        loss.backward()  # here
        return loss

    def step(self, batch, world_size):
        self.optimizer.zero_grad()
        parts = batch.split(4)
        for part in parts:
            loss = self.loss_and_backward(part, world_size) / len(parts)
        self.optimizer.step()
        return loss.item()
""",
    ),
}
