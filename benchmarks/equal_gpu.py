"""`fallline equal` on a GPU: a small GPT in bf16, checkpointed and compiled, once right and once wrong; seconds and peak memory.

python benchmarks/equal_gpu.py "right, compiled" undivided  # only these cases
python benchmarks/equal_gpu.py            # prints a line for each; exit status 1 if one is not as it should be
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = """
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
wrong = sys.argv[1] if len(sys.argv) > 1 else ""
K, WIDTH, LAYERS, LENGTH, WORDS = 4, 768, 8, 256, 8192


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (h.view(b, t, 12, -1).transpose(1, 2) for h in self.qkv(self.first(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH)
        x = x + self.out(y)
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            keep = wrong != "rng"
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=keep) if "checkpoint" in sys.argv or wrong == "rng" else block(x)
        return self.head(x)


model = GPT().cuda()
step = torch.compile(model) if "compile" in sys.argv else model
text = torch.randint(0, WORDS, (64, LENGTH + 1))
labels = text[:, 1:].clone()
for row in range(64):
    labels[row, 64 + 3 * row :] = -100
loader = DataLoader(TensorDataset(text[:, :-1], labels), batch_size=4, shuffle=True, pin_memory=True, num_workers=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def windows():
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == K:
            yield window
            window = []
    if window:
        yield window


for window in windows():
    total = sum((y != -100).sum() for _, y in window)
    for ids, targets in window:
        ids, targets = ids.cuda(), targets.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = step(ids).flatten(0, 1)
        summed = F.cross_entropy(logits.float(), targets.flatten(), reduction="sum")
        mean = F.cross_entropy(logits.float(), targets.flatten())
        loss = mean if wrong == "undivided" else mean / K if wrong == "means" else summed / int(total)
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
CASES = {
    "right": ([], "equal", None),
    "right, checkpointed": (["right", "checkpoint"], "equal", None),
    "right, compiled": (["right", "compile"], "equal", None),
    "undivided": (["undivided"], "different", "FL104"),
    "mean of means": (["means"], "different", "FL111"),
    "checkpoint without rng": (["rng"], "different", "FL407"),
}


def _memory(answer: dict[str, Any]) -> str:
    """Peaks on the device: of the loop as it is written, and of the other way that took most."""
    held = answer.get("memory") or {}
    if not held:
        return "memory not known"
    own, most = held["as_written"][1], held["most"][1]
    return f"{own / 2**20:.0f} MiB as written, {most / 2**20:.0f} MiB at most ({most / max(own, 1):.2f}x)"


def main(only: list[str]) -> int:
    failed = 0
    with tempfile.TemporaryDirectory(prefix="equal-gpu-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT, encoding="utf-8")
        for name, (arguments, verdict, code) in CASES.items():
            if only and name not in only:
                continue
            begun = time.monotonic()
            command = [sys.executable, "-m", "fallline", "equal", "--out", f"{folder}/out", "--ranks", "1", str(script), *arguments]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=os.environ)  # fmt: skip
            seconds = time.monotonic() - begun
            path = Path(folder) / "out/equal.json"
            answer = json.loads(path.read_text()) if path.exists() else {"verdict": "none", "comparisons": []}  # fmt: skip
            codes = [c["code"] for c in answer["comparisons"] if not c["equal"]]
            right = answer["verdict"] == verdict and (code is None or code in codes)
            failed += not right
            print(f"{'ok   ' if right else 'WRONG'} {name}: {answer['verdict']} {codes} in {seconds:.0f} s, {answer.get('runs')} runs; {_memory(answer)}")  # fmt: skip
            print(done.stdout.rstrip(), flush=True)
            if done.returncode == 2:
                print(done.stderr[-3000:])
            path.unlink(missing_ok=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
