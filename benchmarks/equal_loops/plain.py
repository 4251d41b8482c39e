"""Loops without a framework, each with one switch for what is wrong with it: `train("undivided")`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

K = 4


def pictures(count: int = 40) -> TensorDataset:
    """Rows with classes."""
    return TensorDataset(torch.randn(count, 8), torch.randint(0, 3, (count,)))


def net(*, norm: bool = False, dropout: float = 0.1) -> nn.Sequential:
    middle = nn.BatchNorm1d(16) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(8, 16), middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 3))


def _optimizer(model: nn.Module, fault: str) -> torch.optim.Optimizer:
    if "adam" in fault:
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    kind = {"right foreach": {"foreach": True}, "right fused": {"fused": True}}.get(fault, {})
    return torch.optim.SGD(model.parameters(), lr=0.1, **kind)  # type: ignore[arg-type]


def classify(fault: str = "") -> None:
    """The textbook loop with accumulation."""
    torch.manual_seed(0)
    model = net(norm=fault == "right batch norm")
    kind = torch.float64 if fault == "right float64" else torch.float32
    model.to(kind)
    short = fault.startswith(("remainder", "right flush"))
    loader = DataLoader(pictures(44 if short else 32), batch_size=4, shuffle=True)
    optimizer = _optimizer(model, fault)
    precision = torch.autocast("cpu", torch.bfloat16, enabled=fault == "right autocast")
    if fault == "right autocast inside":  # as Accelerate does it
        model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)  # type: ignore[method-assign]
    scaler = torch.amp.GradScaler("cpu", enabled=fault == "right scaler")
    k = 1 if fault == "right one batch" else K
    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            with precision:
                loss = _loss(model(x.to(kind)), y, fault)
            loss = _divided(loss, fault, i, len(loader), k)
            scaler.scale(loss).backward()
            if fault == "wiped" and (i + 1) % k == 2:
                optimizer.zero_grad()
            if fault == "clip each":
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            if fault == "divided inside":
                for p in model.parameters():
                    p.grad /= k  # type: ignore[operator]
            last = i + 1 == len(loader) and fault not in ("remainder dropped", "right")
            if (i + 1) % k == 0 or last:
                scaler.unscale_(optimizer)
                _before_step(model, fault)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        if fault == "remainder dropped":
            optimizer.zero_grad()


def _loss(out: Tensor, y: Tensor, fault: str) -> Tensor:
    if fault == "right sum":
        return F.cross_entropy(out, y, reduction="sum")
    return F.cross_entropy(out, y)


def _divided(loss: Tensor, fault: str, i: int, length: int, k: int) -> Tensor:
    whole = ("undivided", "undivided and clipped", "divided inside", "right by hand", "right sum")
    if fault in whole:
        return loss
    if fault == "divided twice":
        return loss / K / K
    if fault == "wrong divisor":
        return loss / 2
    if fault == "right flush":
        return loss / (K if i < length - length % K else length % K)
    return loss / k


def _before_step(model: nn.Module, fault: str) -> None:
    if fault in ("undivided and clipped", "right clip", "scaled after clipping"):
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    if fault in ("scaled after clipping", "right by hand"):
        for p in model.parameters():
            assert p.grad is not None
            p.grad /= K


class Tokens(nn.Module):
    """A small causal language model."""

    def __init__(self, vocabulary: int = 20, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.mix(self.embed(ids))
        out: Tensor = self.head(hidden)
        return out


def sentences(count: int = 32, length: int = 12) -> list[Tensor]:
    lengths = torch.randint(3, length, (count,)).tolist()
    return [torch.randint(1, 20, (n,)) for n in lengths]


def ragged(samples: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Padded inputs, and labels that ignore the padding."""
    ids = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    labels = nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=-100)
    return ids[:, :-1], labels[:, 1:]


def language(fault: str = "") -> None:
    """Targets of unequal number in every micro-batch."""
    torch.manual_seed(0)
    model = Tokens()
    loader = DataLoader(sentences(), batch_size=2, shuffle=True, collate_fn=ragged)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for window in windows(loader):
        total = sum(int((labels != -100).sum()) for _, labels in window)
        for ids, labels in window:
            logits = model(ids).flatten(0, 1)
            if fault == "mean of means":
                loss = F.cross_entropy(logits, labels.flatten()) / K
            else:
                summed = F.cross_entropy(logits, labels.flatten(), reduction="sum")
                if fault == "divided by the last one's tokens":
                    total = int((window[-1][1] != -100).sum())
                loss = summed / total
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def windows(loader: Any) -> Iterator[list[Any]]:
    """Micro-batches of one update."""
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == K:
            yield window
            window = []
    if window:
        yield window


class Blocks(nn.Module):
    """Blocks that may be checkpointed, and may do something else where they are compiled."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.5)) for _ in range(2)
        )
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            if "checkpoint" in self.fault:
                keep = self.fault != "checkpoint without rng"
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=keep)
            elif self.fault == "right reentrant":
                x = checkpoint(block, x, use_reentrant=True)
            else:
                x = block(x)
        if self.fault == "compile only" and torch.compiler.is_compiling():
            x = x * 2
        if self.fault == "eager only" and not torch.compiler.is_compiling():
            x = x.detach()
        out: Tensor = self.last(x)
        return out


def blocks(fault: str = "") -> None:
    """Checkpointing and compilation."""
    torch.manual_seed(0)
    model: Any = Blocks(fault)
    if fault in ("compile only", "eager only", "right compile"):
        model = torch.compile(model, backend="eager")
    loader = DataLoader(pictures(), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / 2).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


def evaluate(model: nn.Module, loader: Any, fault: str) -> float:
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            total += loss.item() if fault != "right sum over samples" else loss.item() * len(x)
    model.train()
    if fault == "evaluation divided twice":
        return total / len(loader) / 8
    if fault == "evaluation undivided":
        return total
    if fault == "right sum over samples":
        return total / len(loader.dataset)
    return total / len(loader)


def evaluated(fault: str = "") -> None:
    """A loop with a validation loss."""
    torch.manual_seed(0)
    model = net()
    loader = DataLoader(pictures(), batch_size=8, shuffle=True)
    held_out = DataLoader(pictures(24), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        val_loss = evaluate(model, held_out, fault)
        print(epoch, val_loss)


def shifted(fault: str = "") -> None:
    """Labels for the next token."""
    torch.manual_seed(0)
    model = Tokens()
    text = torch.randint(0, 20, (16, 13))
    loader = DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids, labels in loader:
        logits = model(ids)
        if fault == "labels shifted twice":
            logits, labels = logits[:, :-1], labels[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def drawn(fault: str = "") -> None:
    """A loop that draws its micro-batches itself, as nanoGPT does."""
    torch.manual_seed(0)
    model = Tokens()
    text = torch.randint(0, 20, (1000,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        for _ in range(K):
            places = torch.randint(0, 900, (4,)).tolist()
            ids = torch.stack([text[p : p + 12] for p in places])
            labels = torch.stack([text[p + 1 : p + 13] for p in places])
            loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
            if fault != "drawn undivided":
                loss = loss / K
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def split(fault: str = "") -> None:
    """A loop that splits a batch into micro-batches."""
    torch.manual_seed(0)
    model = net()
    loader = DataLoader(pictures(), batch_size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        for part, classes in zip(x.chunk(K), y.chunk(K), strict=True):
            loss = F.cross_entropy(model(part), classes)
            (loss if fault == "split undivided" else loss / K).backward()
        optimizer.step()
        optimizer.zero_grad()


class Augmented(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Every sample is drawn anew."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.data[index]
        return x + 0.1 * torch.randn_like(x), y


def augmented(fault: str = "") -> None:
    """Noise on the samples, made by the dataset in worker processes."""
    torch.manual_seed(0)
    model = net()
    loader = DataLoader(Augmented(pictures()), batch_size=4, shuffle=True, num_workers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / 2).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


def noisy(fault: str = "") -> None:
    """A denoiser: noise and its strength are drawn for every sample between loader and model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 8))
    loader = DataLoader(pictures(), batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, _) in enumerate(loader):
        noise, strength = torch.randn_like(x), torch.rand(len(x), 1)
        out = model(torch.cat([x + strength * noise, strength], dim=1))
        (F.mse_loss(out, noise) / 2).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


class Pictures(nn.Module):
    """A convolution, flattened by hand."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 36, 3)
        self.by_memory = fault == "flattened by memory order"

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(x))
        if self.by_memory:  # as a kernel written for the usual format reads it
            x = x.as_strided((len(x), 4 * 36), (4 * 36, 1))
        out: Tensor = self.head(x.flatten(1))
        return out


def memory_format(fault: str = "") -> None:
    """Pictures in channels_last."""
    torch.manual_seed(0)
    model = Pictures(fault).to(memory_format=torch.channels_last)
    data = TensorDataset(torch.randn(16, 3, 6, 6), torch.randint(0, 3, (16,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y).backward()
        optimizer.step()
        optimizer.zero_grad()


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.head(mixed.transpose(1, 2).flatten(2)[:, -1])
        return out


def attention(fault: str = "") -> None:
    """With torch's fused attention."""
    torch.manual_seed(0)
    model = Attends()
    data = TensorDataset(torch.randn(32, 6, 8), torch.randint(0, 3, (32,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i, (x, y) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
        (F.cross_entropy(model(x), y) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()


def ordered(fault: str = "") -> None:
    """A loss that should not care which sample comes first."""
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(pictures(32), batch_size=8, shuffle=True):
        losses = F.cross_entropy(model(x), y, reduction="none")
        if fault == "weighted by position":
            losses = losses * torch.linspace(0.5, 1.5, len(losses))
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def two(fault: str = "") -> None:
    """An optimizer for the body and one for the head."""
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 3)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (body, head)]
    for i, (x, y) in enumerate(DataLoader(pictures(32), batch_size=4, shuffle=True)):
        (F.cross_entropy(head(body(x)), y) / K).backward()
        if (i + 1) % K == 0:
            if fault == "second summed":
                for p in head.parameters():
                    p.grad *= K  # type: ignore[operator]
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


def later(fault: str = "") -> None:
    """A loop whose third update differs from its first two."""
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for i, (x, y) in enumerate(DataLoader(pictures(64), batch_size=4, shuffle=True)):
        undivided = fault == "undivided from the third update" and i >= 2 * K
        loss = F.cross_entropy(model(x), y)
        (loss if undivided else loss / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()


LOOPS = {
    f.__name__: f
    for f in (
        classify, language, blocks, evaluated, shifted, drawn, split, augmented, noisy, memory_format, attention, ordered, two, later,
    )
}  # fmt: skip

if __name__ == "__main__":
    LOOPS[sys.argv[1]](" ".join(sys.argv[2:]))
