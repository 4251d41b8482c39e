"""How long training waits for a checkpoint: saved at once, and in the background.

    PYTHONPATH=src python benchmarks/engine_save.py --json save.json            # 1.3 B parameters with AdamW's state, on a GPU
    PYTHONPATH=src python benchmarks/engine_save.py --parameters 50             # 50 M, on a CPU

Four numbers for each way: how long the call itself blocks, how long the host takes for the next update, how much later the following updates end than they would without
the save, and how long it takes until the checkpoint is on disk. The first background save also allocates its buffers. What was saved is loaded and compared bit for bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fallline

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = [
            t.view(batch, length, -1, 64).transpose(1, 2)
            for t in self.qkv(self.before(x)).chunk(3, dim=-1)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def build(millions: int) -> tuple[Model, fallline.Stepper]:
    torch.manual_seed(0)
    layers, width, words = (24, 2048, 50304) if millions >= 1000 else (12, 512, 24576)
    model = Model(layers, width, words).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE.type == "cuda")
    return model, fallline.Stepper(model, optimizer, precision="bf16", clip_norm=1.0)


def wait_for_device() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


class Run:
    """A run that trains on the same tokens, and says how long a few updates take."""

    def __init__(self, millions: int) -> None:
        self.model, self.stepper = build(millions)
        shape = (4, 1024) if DEVICE.type == "cuda" else (1, 64)
        self.tokens = torch.randint(0, 24000, shape, device=DEVICE)

    def step(self) -> None:
        with self.stepper.micro_batch() as micro:
            logits = self.model(self.tokens[:, :-1]).flatten(0, 1).float()
            micro.backward(nn.functional.cross_entropy(logits, self.tokens[:, 1:].flatten()))

    def updates(self, count: int) -> float:
        wait_for_device()
        began = time.perf_counter()
        for _ in range(count):
            self.step()
        wait_for_device()
        return time.perf_counter() - began

    def save(self, folder: Path, wait: bool, following: int, plain: float) -> dict[str, float]:
        """One save, and the updates that follow it."""
        wait_for_device()
        began = time.perf_counter()
        fallline.save_checkpoint(folder, stepper=self.stepper, wait=wait, keep_last=1)
        call = time.perf_counter() - began
        self.step()
        first = time.perf_counter() - began - call
        for _ in range(following - 1):
            self.step()
        wait_for_device()
        trained = time.perf_counter() - began
        fallline.wait_for_checkpoint()
        return {
            "call ms": 1000 * call,
            "next update, host ms": 1000 * first,
            "training waits ms": 1000 * (trained - following * plain),
            "on disk s": time.perf_counter() - began,
        }


def check(run: Run, folder: Path, wanted: dict[str, Tensor]) -> None:
    """What is on disk is the moment of the call."""
    fallline.load_checkpoint(folder, stepper=run.stepper)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, wanted[name]), f"{name} was saved wrongly"


def measure(millions: int, folder: Path, following: int) -> dict[str, Any]:
    run = Run(millions)
    run.updates(5)
    plain = statistics.median(run.updates(following) / following for _ in range(3))
    numbers = sum(p.numel() for p in run.model.parameters())
    result: dict[str, Any] = {
        "day": date.today().isoformat(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
        "parameters": numbers,
        "bytes": 12 * numbers,
        "update ms": 1000 * plain,
        "blocking": run.save(folder, True, following, plain),
        "background, first": run.save(folder, False, following, plain),
    }
    later = []
    for _ in range(3):
        wanted = {name: value.clone() for name, value in run.model.state_dict().items()}
        later.append(run.save(folder, False, following, plain))
    result["background"] = {key: statistics.median(save[key] for save in later) for key in later[0]}
    check(run, folder, wanted)
    ratio = result["background"]["training waits ms"] / result["blocking"]["training waits ms"]
    result["background / blocking"] = ratio
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parameters", type=int, help="millions: 1300 or 50")
    parser.add_argument("--following", type=int, default=10, help="updates after each save")
    parser.add_argument("--folder", help="where to save; a temporary folder unless it is given")
    parser.add_argument("--json", help="also write the numbers to this file")
    options = parser.parse_args()
    millions = options.parameters or (1300 if DEVICE.type == "cuda" else 50)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(millions, Path(folder), options.following)
    print(json.dumps(result, indent=1))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
