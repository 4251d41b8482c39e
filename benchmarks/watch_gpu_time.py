"""Is the time that a watched run reports the time that its loop takes? Needs an accelerator.

    python benchmarks/watch_gpu_time.py          # prints the two, and where the time goes

Loops with a queue of work ahead of the host, with a loader that is too slow, and with a host that waits for each loss.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

LOOP = """
import sys, time, torch
from torch import nn

how = sys.argv[1]
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True)
model = nn.TransformerEncoder(layer, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=how == "fused")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16 * 150

    def __getitem__(self, index):
        if how == "slow":
            time.sleep(0.005)
        return torch.randn(128, 512)


loader = torch.utils.data.DataLoader(Data(), batch_size=16)
times = []
last = None
for x in loader:
    x = x.cuda(non_blocking=True)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if how == "item":
        loss.item()
    if len(times) % 10 == 0:
        torch.cuda.synchronize()
    now = time.perf_counter()
    if last is not None:
        times.append(now - last)
    last = now
torch.cuda.synchronize()
print(1000 * sum(times[20:]) / len(times[20:]))
"""


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
    from fallline.runs.read import read_run

    worst = 0.0
    with tempfile.TemporaryDirectory() as place:
        script = Path(place, "loop.py")
        script.write_text(LOOP)
        for how in ("plain", "fused", "item", "slow"):
            out = Path(place, how)
            ran = subprocess.run(
                [sys.executable, "-m", "fallline", "run", "--out", str(out), str(script), how],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            own = float(ran.stdout.split()[-1])
            (track,) = read_run(out).tracks
            timed = [r.seconds for r in track.rows[20:] if "other" in r.seconds]
            mean = 1000 * sum(sum(s.values()) for s in timed) / len(timed)
            typical = {part: round(1000 * s, 2) for part, s in track.typical().items()}
            worst = max(worst, abs(mean / own - 1))
            print(f"{how}: the loop's clock {own:.2f} ms, reported {mean:.2f} ms ({mean / own:.3f}) over {len(timed)} updates; {json.dumps(typical)}")  # fmt: skip
    print(f"worst difference {worst:.1%}")
    return 0 if worst < 0.02 else 1


if __name__ == "__main__":
    raise SystemExit(main())
