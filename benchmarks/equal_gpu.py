"""`fallline equal` on a GPU: a small GPT in bf16, checkpointed and compiled, right and wrong; seconds and peak memory.

python benchmarks/equal_gpu.py                              # exit status 1 if a case is not as it should be
python benchmarks/equal_gpu.py "right, compiled" undivided  # only these cases
python benchmarks/equal_gpu.py --alone undivided            # one after another: how long each takes by itself

The cases run side by side, and each is printed as soon as it is known. After 220 seconds the rest is given up. Without a GPU the model is
smaller, to try the script out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
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
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
K, WIDTH, LAYERS, LENGTH, WORDS = (4, 768, 8, 256, 8192) if GPU else (4, 48, 2, 256, 64)


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


model = GPT().to(DEVICE)
step = torch.compile(model) if "compile" in sys.argv else model
text = torch.randint(0, WORDS, (64, LENGTH + 1))
labels = text[:, 1:].clone()
for row in range(64):
    labels[row, 64 + 3 * row :] = -100
loader = DataLoader(TensorDataset(text[:, :-1], labels), batch_size=4, shuffle=True, pin_memory=GPU, num_workers=2)
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
        ids, targets = ids.to(DEVICE), targets.to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
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


LIMIT = 220.0  # seconds for all cases together


def _memory(answer: dict[str, Any]) -> str:
    """Peaks on the device: of the loop as it is written, and of the other way that took most."""
    held = answer.get("memory") or {}
    if not held:
        return "memory not known"
    place = 1 if held["as_written"][1] else 0  # of the device, else of the host
    own, most = held["as_written"][place], held["most"][place]
    return f"{own / 2**20:.0f} MiB as written, {most / 2**20:.0f} MiB at most ({most / max(own, 1):.2f}x)"


def compared(name: str, folder: Path, end: float) -> tuple[bool, str]:
    """Whether this case is as it should be, and what to print about it."""
    arguments, verdict, code = CASES[name]
    out = folder / name.replace(" ", "_").replace(",", "")
    command = [sys.executable, "-m", "fallline", "equal", "--out", str(out), "--ranks", "1", str(folder / "train.py"), *arguments]  # fmt: skip
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True)  # fmt: skip
    try:
        said, errors = process.communicate(timeout=max(1.0, end - begun))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the runs that it has started
        return False, f"WRONG {name}: not done after {time.monotonic() - begun:.0f} s"
    seconds, path = time.monotonic() - begun, out / "equal.json"
    answer = json.loads(path.read_text()) if path.exists() else {"verdict": "none", "comparisons": []}  # fmt: skip
    codes = [c["code"] for c in answer["comparisons"] if not c["equal"]]
    right = answer["verdict"] == verdict and (code is None or code in codes)
    lines = [f"{'ok   ' if right else 'WRONG'} {name}: {answer['verdict']} {codes} in {seconds:.0f} s, {answer.get('runs')} runs; {_memory(answer)}"]  # fmt: skip
    lines += [said.rstrip()]
    lines += [errors[-3000:]] if process.returncode == 2 else []
    return right, "\n".join(lines)


def main(arguments: list[str]) -> int:
    together = 1 if "--alone" in arguments else len(CASES)
    named = [a for a in arguments if not a.startswith("--")]
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    end, right = time.monotonic() + LIMIT, True
    with tempfile.TemporaryDirectory(prefix="equal-gpu-") as folder, ThreadPoolExecutor(together) as pool:  # fmt: skip
        (Path(folder) / "train.py").write_text(SCRIPT, encoding="utf-8")
        waiting = [pool.submit(compared, n, Path(folder), end) for n in named or CASES]
        for done in as_completed(waiting):
            good, text = done.result()
            right = right and good
            print(text, flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
