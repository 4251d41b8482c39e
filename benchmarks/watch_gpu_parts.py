"""Where the watcher's time goes on a compiled nanoGPT: the parts of an update on the device, bare and watched in turns.

    PYTHONPATH=src python benchmarks/watch_gpu_parts.py [--seconds 140] [--turns bare,watched,bare,watched,off]

Each turn prints, for blocks of 20 updates, the time of an update by the loop's clock, the host's own seconds, and by events of
the loop how long the device took for forward, backward, clip, step and the rest of an update.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from watch_gpu import GPT, ROOT

LOOP = """
import sys
def block(n):
    marks = []
    def mark():
        e = torch.cuda.Event(enable_timing=True)
        e.record()
        marks.append(e)
    host = time.thread_time()
    started = time.perf_counter()
    for i in range(n):
        batch = data[i % 64]
        mark()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch[:, :-1], batch[:, 1:])
        mark()
        loss.backward()
        mark()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        mark()
        optimizer.step()
        mark()
        optimizer.zero_grad(set_to_none=True)
    mark()
    host = time.thread_time() - host
    torch.cuda.synchronize()
    took = time.perf_counter() - started
    parts = [0.0] * 5
    for at, (a, b) in enumerate(zip(marks, marks[1:])):
        parts[at % 5] += a.elapsed_time(b) / n
    return took / n, host / n, parts
def state():
    taps = sys.modules.get("fallline.taps.tap")
    if taps is None:
        return "bare"
    frames = sys.modules["torch._dynamo.convert_frame"].FRAME_COUNTER
    return ("rests" if taps.switch.pulse is not None else "watches") + f" frames {frames}"
for n in (50, 70):
    print("UPDATES", n, "ms %.2f host %.2f parts %s" % (lambda t, h, p: (1e3 * t, 1e3 * h, [round(x, 3) for x in p]))(*block(n)), state(), flush=True)
found = []
for k in range(12):
    before = state()
    took, host, parts = block(20)
    found.append(took)
    print(f"{120 + 20 * k:4d} {1e3 * took:.2f} ms, host {1e3 * host:.2f}; forward %.3f backward %.3f clip %.3f step %.3f rest %.3f" % tuple(parts), before, "->", state(), flush=True)
print("STEP first six %.3f last six %.3f ms" % (1e3 * sorted(found[:6])[3], 1e3 * sorted(found[6:])[3]))
"""


def turn(kind: str, folder: Path, number: int) -> None:
    script = folder / "gpt_parts.py"
    script.write_text(GPT.split("def train(n):")[0] + LOOP)
    command = [sys.executable, str(script)]
    if kind != "bare":
        guard = "off" if kind == "off" else "skip"
        watch = ["-m", "fallline", "run", "--guard", guard, "--out", str(folder / f"run{number}")]
        command = [sys.executable, *watch, str(script)]
    source = {"PYTHONPATH": str(ROOT / "src"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, **source},
        cwd=folder,
    )
    print(f"== {kind}\n{done.stdout}{done.stderr[-1500:] if kind != 'bare' else ''}", flush=True)
    clocks = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv"]
    print(subprocess.run(clocks, capture_output=True, text=True, check=False).stdout, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=140)
    parser.add_argument("--turns", default="bare,watched,bare,watched,off")
    args = parser.parse_args()
    began = time.monotonic()
    longest = 0.0
    with tempfile.TemporaryDirectory() as home:
        for number, kind in enumerate(args.turns.split(",")):
            if time.monotonic() - began + longest > args.seconds:
                print("no time left for", kind)
                break
            started = time.monotonic()
            turn(kind, Path(home), number)
            took = time.monotonic() - started
            longest = took if number == 1 else max(longest if number else 0.0, took)
            print(f"{took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
