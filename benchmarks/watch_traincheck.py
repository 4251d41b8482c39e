"""TrainCheck beside fallline: the same small script bare, under `fallline run`, and under `traincheck-collect`.

    python benchmarks/watch_traincheck.py --python /path/to/an/environment/with/traincheck/bin/python

TrainCheck rewrites a script and runs it, so this cannot take turns in one process as watch.py does: it is three runs. What is
measured is its first stage, collecting a reference trace; inferring invariants from it and checking come on top. CPU time
of a step, without the first three.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

JOB = """\
import time, torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
model = nn.Sequential(nn.Embedding(512, 64), encoder, nn.Linear(64, 512))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(0, 512, (64, 4, 32))
for i in range(13):
    if i == 3:
        started = time.process_time()
    loss = nn.functional.cross_entropy(model(tokens[i]).flatten(0, -2), tokens[i].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("STEP", (time.process_time() - started) / 10)
"""


def step_seconds(command: list[str], folder: Path, output: Path | None = None) -> float:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    text = done.stdout + (output.read_text() if output is not None and output.exists() else "")
    found = re.search(r"STEP ([\d.e-]+)", text)
    if found is None:
        sys.exit(f"{' '.join(command)} printed no time:\n{(text + done.stderr)[-600:]}")
    return float(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, help="of an environment that has traincheck")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "job.py").write_text(JOB)
        bare = min(step_seconds([sys.executable, "job.py"], folder) for _ in range(3))
        watch = [sys.executable, "-m", "fallline", "run", "--out", "run", "job.py"]
        watched = min(step_seconds(watch, folder) for _ in range(3))
        collect = [args.python, "-m", "traincheck.collect_trace", "-p", "job.py"]
        collect += ["--models-to-track", "model", "--output-dir", str(folder / "out")]
        collected = step_seconds(collect, folder, folder / "out" / "program_output.txt")
    print(f"bare {1e3 * bare:.1f} ms; fallline run, its first 13 updates, {watched / bare:.2f}x")
    print(f"traincheck-collect {collected / bare:.0f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
