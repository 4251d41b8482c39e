"""The watcher on a CUDA device: planted faults, the same bits, bad updates that are kept out, no waits, and what it costs.

    PYTHONPATH=src python benchmarks/watch_gpu.py [--only planted|bits|fused|waits|cost|gpt|clock] [--out FILE]

Needs a machine with an accelerator, torch and triton; nothing else. The scripts are those of tests/watcher, with the device
as torch's default.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "watcher"))

from planted_faults import FAULTS
from same_bits_scripts import SCRIPTS

ROOT = Path(__file__).parent.parent

ON_DEVICE = 'import torch; torch.set_default_device("cuda"); '  # on the first line: lines keep their numbers
BIRTHS = ("FL620", "FL621", "FL622", "FL623")

FUSED = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for i in range(60):
    x = torch.randn(32, 64, device="cuda")
    out = model(x).abs()
    if i in (20, 40):
        out = out * 0
    loss = out.sqrt().mean()  # HERE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert all(p.isfinite().all() for p in model.parameters())
"""

WAITS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(32, 64, device="cuda")
torch.cuda.set_sync_debug_mode("error")
for i in range(400):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.set_sync_debug_mode("default")
print("NEVER WAITED", loss.item())
"""

# nanoGPT's 124M model and step: bfloat16 autocast, compiled, fused AdamW, clipping, batch 12 x 1024.
GPT = """
import time, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
class Block(nn.Module):
    def __init__(self, d=768, heads=12):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.between(x))))
class GPT(nn.Module):
    def __init__(self, d=768, layers=12, words=50304, context=1024):
        super().__init__()
        self.words, self.places = nn.Embedding(words, d), nn.Embedding(context, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(d, bias=False), nn.Linear(d, words, bias=False)
        self.head.weight = self.words.weight
    def forward(self, x, y):
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.last(h)).flatten(0, 1), y.flatten())
plain = GPT().cuda()
model = torch.compile(plain)
optimizer = torch.optim.AdamW(plain.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
data = torch.randint(0, 50304, (64, 12, 1025), device="cuda")
def train(n):
    for i in range(n):
        batch = data[i % 64]
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        ended.append(time.time())
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
ended = []
train(120)
found = []
for _ in range(12):
    started = time.perf_counter()
    train(20)
    found.append((time.perf_counter() - started) / 20)
middle = sorted(found)[2:-2]  # a device's clock goes up and down by a percent
print("STEP", sum(middle) / len(middle))
print("ENDED", ended)
"""

COST = """
import sys, time, torch
from torch import nn
torch.manual_seed(0)
width, layers = int(sys.argv[1]), int(sys.argv[2])
layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=len(sys.argv) > 3)
x = torch.randn(8, 256, width, device="cuda")
def train(n):
    for _ in range(n):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ended.append(time.time())
    torch.cuda.synchronize()
ended = []
train(60)
best = []
for _ in range(8):
    started = time.perf_counter()
    train(25)
    best.append((time.perf_counter() - started) / 25)
print("STEP", sorted(best)[len(best) // 2])
print("ENDED", ended)
"""


def run(
    name: str, script: str, folder: Path, *, watched: bool, arguments: tuple[str, ...] = ()
) -> str:
    path = folder / f"{name}.py"
    path.write_text(script)
    command = [sys.executable, str(path), *arguments]
    if watched:
        out = folder / f"{name}.run"
        guard = "off" if name.endswith("guard_off") else "skip"
        command = [
            sys.executable,
            "-m",
            "fallline",
            "run",
            "--guard",
            guard,
            "--out",
            str(out),
            str(path),
            *arguments,
        ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=folder,
    )
    return done.stdout + (
        "" if done.returncode == 0 else f"\nEXIT {done.returncode}\n{done.stderr[-400:]}"
    )


def findings(name: str, folder: Path) -> list[dict[str, Any]]:
    path = folder / f"{name}.run" / "findings.json"
    return json.loads(path.read_text()) if path.exists() else []


def planted(name: str, folder: Path) -> tuple[str, bool, str]:
    fault = FAULTS[name]
    said = run(name, ON_DEVICE + fault.script, folder, watched=True)
    births = [f for f in findings(name, folder) if f["code"] in BIRTHS]
    if len(births) != 1:
        return name, False, f"{len(births)} births {[b['code'] for b in births]} {said[-200:]}"
    found, evidence = births[0], births[0]["evidence"]
    wrong = []
    if found["code"] != fault.code:
        wrong.append(f"code {found['code']} for {fault.code}")
    if fault.op is not None and evidence.get("op") not in fault.op:
        wrong.append(f"op {evidence.get('op')} for {fault.op}")
    if fault.module is not None and evidence.get("module") not in fault.module:
        wrong.append(f"module {evidence.get('module')} for {fault.module}")
    if evidence.get("step") != fault.step:
        wrong.append(f"update {evidence.get('step')} for {fault.step}")
    if fault.line is not None and found["line"] != fault.line:
        wrong.append(f"line {found['line']} for {fault.line}")
    return name, not wrong, "; ".join(wrong)


def same_bits(name: str, folder: Path) -> tuple[str, bool, str]:
    script = ON_DEVICE + SCRIPTS[name]
    plain = run(f"{name}_plain", script, folder, watched=False)
    again = run(f"{name}_again", script, folder, watched=False)
    if "EXIT" in plain:
        return name, False, "does not run on the device: " + " ".join(plain[-120:].split())
    if plain != again:
        return name, False, "differs from itself without the watcher"
    watched = run(name, script, folder, watched=True)
    return name, watched.startswith(plain), "" if watched.startswith(plain) else watched[-200:]


def step_of(
    name: str, script: str, folder: Path, *, watched: bool, arguments: tuple[str, ...] = ()
) -> float:
    """Seconds of a step, by the script's own clock."""
    said = run(name, script, folder, watched=watched, arguments=arguments)
    if "STEP" not in said:
        raise SystemExit(said[-2000:])
    step = float(said.split("STEP")[1].split()[0])
    if watched:
        ended = json.loads(said.split("ENDED")[1].strip().splitlines()[0])
        print(f"  {name}: {recorded(folder / f'{name}.run', ended)}", flush=True)
    return step


def recorded(run_folder: Path, ended: list[float]) -> str:
    """The time between two updates as the run folder has it, against the loop's own clock for the same updates.

    Not every update has a row: after a rest the recorded ones may lie anywhere, and a loop that the host bounds is not as fast
    everywhere. So only the same updates can be compared.
    """
    sys.path.insert(0, str(ROOT / "src"))
    from fallline.runs.read import read_run

    track = read_run(run_folder).tracks[0]
    rows = track.rows[10:]
    first, last = rows[0], rows[-1]
    updates = last.index - first.index
    between = (last.time - first.time) / updates
    own = (ended[last.index] - ended[first.index]) / updates
    timed = [r for r in rows if "other" in r.seconds]
    by_part = sum(sum(r.seconds.values()) for r in timed) / max(len(timed), 1)
    alone = sum(ended[r.index] - ended[r.index - 1] for r in timed) / max(len(timed), 1)
    return (
        f"updates {first.index} to {last.index}: {1e3 * between:.2f} ms between updates as recorded, {1e3 * own:.2f} by the loop's clock "
        f"({between / own:.3f}); the {len(timed)} that were timed: {1e3 * by_part:.2f} ms by part, {1e3 * alone:.2f} by the loop's clock ({by_part / max(alone, 1e-9):.3f})"
    )


def shown(bare: float, watched: float) -> str:
    return f"{1e3 * bare:.2f} ms bare, {1e3 * watched:.2f} watched, {watched / bare:.3f}x"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="")
    parts = ("planted", "bits", "fused", "waits", "cost", "gpt", "clock")
    parser.add_argument("--only", choices=parts, action="append", help="cost takes minutes")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return 0
    wanted = args.only or parts
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(8) as pool:
        folder = Path(home)
        for title, work, names in (("planted", planted, FAULTS), ("bits", same_bits, SCRIPTS)):
            if title not in wanted:
                continue
            rows = list(pool.map(lambda name, work=work: work(name, folder), names))
            result[title] = rows
            print(f"{title}: {sum(ok for _, ok, _ in rows)} of {len(rows)}")
            for name, ok, why in rows:
                if not ok:
                    print(f"  {name}: {why}")
        if "fused" in wanted:
            print(run("fused", FUSED, folder, watched=True))
            found = findings("fused", folder)
            result["fused"] = [
                {k: f.get(k) for k in ("code", "line", "message")} | {"evidence": f["evidence"]}
                for f in found
            ]
            print("fused:", json.dumps(result["fused"])[:1500])
        if "waits" in wanted:
            said = run("waits", WAITS, folder, watched=True)
            result["waits"] = "NEVER WAITED" in said and "EXIT" not in said
            print(
                "sync debug mode 'error':", "passes" if result["waits"] else said[-800:], flush=True
            )
        if "gpt" in wanted:
            seconds = {w: step_of("gpt", GPT, folder, watched=w) for w in (False, True)}
            result["gpt"] = [seconds[False], seconds[True]]
            print(f"nanoGPT 124M, compiled: {shown(seconds[False], seconds[True])}", flush=True)
        if "clock" in wanted:
            for turn in range(2):
                step_of(f"clock{turn}", COST, folder, watched=True, arguments=("512", "6"))
        cost = []
        sizes = (("512", "6"), ("1024", "12"), ("1024", "12", "fused"))
        for width, layers, *fused in sizes if "cost" in wanted else ():
            seconds: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(2):
                for watched in (False, True) if turn % 2 else (True, False):
                    arguments = (width, layers, *fused)
                    name = f"cost{width}{turn}{len(fused)}"
                    step = step_of(name, COST, folder, watched=watched, arguments=arguments)
                    seconds[watched].append(step)
            bare, with_us = min(seconds[False]), min(seconds[True])
            cost.append((width, layers, bool(fused), bare, with_us))
            print(
                f"width {width}, {layers} layers{', fused' if fused else ''}: {shown(bare, with_us)}",
                flush=True,
            )
        result["cost"] = cost
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    started = time.time()
    status = main()
    print(f"{time.time() - started:.0f} s")
    sys.exit(status)
