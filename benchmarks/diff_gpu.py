"""On a GPU, where kernels are not deterministic: are two runs of one program the same within noise, and is a change still named?

    python benchmarks/diff_gpu.py [--updates N] [--write]

A small transformer that adds rows with atomics, forward and backward, trained twice in float32, TF32, bfloat16 and float16 with a scaler, each run
recorded with `fallline.watch`. Then the same again with one thing changed that nothing but the numbers shows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from results import machine, write_section
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fallline
from fallline.diff import Comparison, compare
from fallline.runs.read import read_run

FORMATS = ("float32", "tf32", "bfloat16", "float16")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 256)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(256, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        # thousands of sums into sixteen rows, forward and backward: atomics decide their order
        rows = (tokens.flatten() % 16)[:, None].expand(-1, x.shape[-1])
        held = torch.zeros(16, x.shape[-1], device=x.device).scatter_add(0, rows, x.flatten(0, 1))
        mixed = (held / len(rows)).gather(0, rows).view_as(x)
        out: Tensor = self.head(self.encoder(x + mixed))
        return out


def train(format: str, updates: int, changed: str = "") -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = format == "tf32"
    torch.backends.cudnn.allow_tf32 = format == "tf32"
    made = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 256, (4096, 65), generator=made)
    tokens[:, 1::2] = (tokens[:, :-1:2] * 7 + 3) % 256  # half of it can be learnt
    if changed == "sample":
        tokens[11] = tokens[11].flip(0)
    order = torch.Generator().manual_seed(2)
    loader = DataLoader(TensorDataset(tokens), 64, shuffle=True, generator=order)
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=format == "float16")
    low = format in ("bfloat16", "float16")
    dtype = getattr(torch, format) if low else torch.float32
    update = 0
    while update < updates:
        for (batch,) in loader:
            batch = batch.cuda(non_blocking=True)
            with torch.autocast("cuda", dtype, enabled=low):
                logits = model(batch[:, :-1])
            smoothing = 0.05 if changed == "smoothing" else 0.0
            loss = nn.functional.cross_entropy(
                logits.float().flatten(0, 1), batch[:, 1:].flatten(), label_smoothing=smoothing
            )
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if changed == "doubled" and update == 20:
                model.head.weight.grad *= 4
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            update += 1
            if update == updates:
                break


def recorded(folder: Path, *given: Any) -> Path:
    with fallline.watch(out=folder):
        train(*given)
    return folder


def said(found: Comparison) -> str:
    noise = found.noise
    if found.same:
        if noise.identical:
            return "the same, bit for bit"
        return f"the same within noise: {noise.first:.1e} at update {noise.onset}, {noise.largest:.1e} at most"
    assert found.first is not None
    return f"{found.first.kind}: {found.first.what}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows = ["| format | repeat | corrupted sample | label smoothing | gradient at update 20 |", "|---|---|---|---|---|"]  # fmt: skip
    good = True
    with tempfile.TemporaryDirectory() as home:
        for format in FORMATS:
            runs = {
                name: recorded(Path(home) / f"{format}-{name}", format, updates, changed)
                for name, updates, changed in (
                    ("base", args.updates, ""),
                    ("repeat", args.updates, ""),
                    ("sample", 64, "sample"),
                    ("smoothing", 64, "smoothing"),
                    ("doubled", 64, "doubled"),
                )
            }
            base = read_run(runs["base"])
            found = {name: compare(base, read_run(run)) for name, run in runs.items() if name != "base"}  # fmt: skip
            rows.append(f"| {format} | " + " | ".join(said(f) for f in found.values()) + " |")
            print(rows[-1], flush=True)
            kinds = [f.first.kind if f.first is not None else "" for f in found.values()]
            good &= found["repeat"].same and kinds[1:] == ["data", "numbers", "numbers"]
            good &= not found["repeat"].noise.identical
    name = torch.cuda.get_device_name()
    body = "\n".join(
        [f"`python benchmarks/diff_gpu.py --write`; {name}, torch {torch.__version__}; {machine()}.", "",
         f"{args.updates} updates of a transformer with 3.3 million parameters, two runs of each format without deterministic kernels, then three changes that only the numbers show.",
         "", *rows]
    )  # fmt: skip
    print(body)
    if args.write:
        write_section("diff on a GPU", body)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
