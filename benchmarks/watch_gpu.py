"""The watcher on a CUDA device: planted faults, the same bits, fused optimizers that skip, and what it costs.

    PYTHONPATH=src python benchmarks/watch_gpu.py [--only planted|bits|fused|cost] [--out FILE]

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
    torch.cuda.synchronize()
train(60)
best = []
for _ in range(8):
    started = time.perf_counter()
    train(25)
    best.append((time.perf_counter() - started) / 25)
print("STEP", sorted(best)[len(best) // 2])
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="")
    parts = ("planted", "bits", "fused", "cost")
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
        cost = []
        sizes = (("512", "6"), ("1024", "12"), ("1024", "12", "fused"))
        for width, layers, *fused in sizes if "cost" in wanted else ():
            seconds: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(2):
                for watched in (False, True) if turn % 2 else (True, False):
                    said = run(
                        f"cost{turn}",
                        COST,
                        folder,
                        watched=watched,
                        arguments=(width, layers, *fused),
                    )
                    seconds[watched].append(float(said.split("STEP")[1].split()[0]))
            bare, with_us = min(seconds[False]), min(seconds[True])
            cost.append((width, layers, bool(fused), bare, with_us))
            print(
                f"width {width}, {layers} layers{', fused' if fused else ''}: {1e3 * bare:.2f} ms bare, {1e3 * with_us:.2f} watched, {with_us / bare:.3f}x",
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
