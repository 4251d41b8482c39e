"""What `fallline run` costs whole runs with short steps: CPU time of the process, bare and watched in turns.

    python benchmarks/watch_runs.py [--seconds 60] [--pairs 3] [--job NAME ...]

Each job is a script of its own and makes as many updates as fill so many seconds when it runs bare. What counts is the CPU time of
the whole process, all threads, from the first update to the end of the last; start-up is given apart. `watch.py --only runs` writes the
table into RESULTS.md.

Jobs of one process run a third time, bare but with a thread that sleeps: the C library takes shortcuts (no locks in malloc, no atomic
counts of shared pointers) as long as a process has never had a second thread, and whoever starts one loses them. Most trainings have
one: a loader's, a logger's, a progress bar's, OpenMP's.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

HEAD = """
import sys, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
updates = int(sys.argv[1])
"""
TAIL = """
    if number == 0:
        started, before = time.process_time(), time.perf_counter()
print(f"COST {started} {time.process_time() - started} {time.perf_counter() - before}\\n", end="", flush=True)
"""

SLEEPER = """
import threading, time
threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
"""

# A replay buffer, a target network, an acting pass between the updates.
DQN = """
def net():
    return nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
policy, target = net(), net()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
states, rewards = torch.randn(1024, 16), torch.randn(1024)
for number in range(updates + 1):
    with torch.no_grad():
        action = policy(states[number % 1024 :][:1]).argmax()
    rows = torch.randint(0, 1023, (64,))
    with torch.no_grad():
        wanted = rewards[rows] + 0.9 * target(states[rows + 1]).max(1).values
    chosen = policy(states[rows])[:, 0]
    loss = nn.functional.smooth_l1_loss(chosen, wanted)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
"""
# Two optimizers, and episodes of different lengths between their updates.
ACTOR_CRITIC = """
actor = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
critic = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
first = torch.optim.Adam(actor.parameters(), lr=1e-3)
second = torch.optim.Adam(critic.parameters(), lr=1e-3)
for number in range(updates // 2 + 1):
    seen = torch.randn(3 + number % 5, 16)
    logs = torch.stack([actor(row).log_softmax(0)[0] for row in seen])
    values = critic(seen).squeeze(1)
    gains = torch.ones(len(seen)) - values
    first.zero_grad()
    (-(logs * gains.detach()).mean()).backward()
    first.step()
    second.zero_grad()
    gains.square().mean().backward()
    second.step()
"""
TINY = """
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(4096, 32), torch.randint(0, 8, (4096,))
for number in range(updates + 1):
    rows = torch.randint(0, 4096, (32,))
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TRANSFORMER = """
class Model(nn.Module):
    def __init__(self, layers=2, width=128, words=512):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)
    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))
model = Model()
tokens = torch.randint(0, 512, (64, 6, 64))
"""
TRAIN = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for number in range(updates + 1):
    batch = tokens[number % 64]
    loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), tokens[0].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DDP = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
"""
FSDP2 = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
for layer in model.layers.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
for number in range(updates + 1):
    batch = tokens[number % 64]
    loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), tokens[0].flatten())
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
"""
# The Trainer has the loop: the times are taken in it, and the loop that prints them has nothing to do.
LIGHTNING = """
import lightning, logging, warnings
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Task(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model
    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self.net(batch[0]).flatten(0, 1), tokens[0].flatten())
    def on_train_batch_end(self, *args):
        global started, before
        if self.global_step == 1:
            started, before = time.process_time(), time.perf_counter()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=None)
trainer = lightning.Trainer(
    max_steps=updates + 1, max_epochs=-1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
)
trainer.fit(Task(), data)
for number in range(1, 2):
    pass
"""

# name: (script, ranks, milliseconds of a bare update, the bar)
JOBS = {
    "1 ms: a tiny MLP, SGD": (TINY, 1, 0.5, 1.03),
    "1 ms: DQN": (DQN, 1, 1.3, 1.03),
    "1 ms: actor and critic": (ACTOR_CRITIC, 1, 1.2, 1.03),
    "20 ms: 2 layers, d = 128": (TRANSFORMER + TRAIN, 1, 22.0, 1.01),
    "20 ms: the same, 2 ranks of DDP": (TRANSFORMER + DDP + TRAIN, 2, 25.0, 1.02),
    "20 ms: the same, 2 ranks of FSDP2": (TRANSFORMER + FSDP2 + TRAIN, 2, 40.0, 1.02),
    "20 ms: the same, 2 ranks under Accelerate": (TRANSFORMER + ACCELERATE, 2, 25.0, 1.02),
    "20 ms: the same, 2 ranks under Lightning": (TRANSFORMER + LIGHTNING, 2, 25.0, 1.02),
}


def once(script: str, ranks: int, updates: int, how: str) -> tuple[float, float, float]:
    """CPU seconds until the first update, those of all others, and wall seconds of these; rank 0 where there are several."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.py"
        path.write_text((SLEEPER if how == "sleeper" else "") + HEAD + script + TAIL)
        command = [str(path), str(updates)]
        if how == "watched":
            command = ["-m", "fallline", "run", "--out", str(Path(folder) / "run"), *command]
        if ranks > 1:
            launcher = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(ranks),
            ]
            command = [*launcher, *command]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, env=environment, cwd=folder
        )
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("COST")]
    if not found:
        raise SystemExit(done.stdout + done.stderr)
    start, cost, wall = (
        statistics.fmean(map(float, column)) for column in zip(*found, strict=True)
    )
    return start, cost, wall


def table(seconds: float, pairs: int, names: list[str]) -> list[str]:
    lines = [
        "| job | updates | bare CPU, ms an update | CPU x, pairs | wall x | a sleeping thread alone, CPU x | start-up, CPU s more | bar |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        script, ranks, ms, bar = JOBS[name]
        updates = int(1000 * seconds / ms)
        ways = ["bare", "watched", *(["sleeper"] if ranks == 1 else [])]
        rounds = []
        for number in range(pairs):
            order = ways[::-1] if number % 2 else ways
            rounds.append({how: once(script, ranks, updates, how) for how in order})
        ratios = [found["watched"][1] / found["bare"][1] for found in rounds]
        walls = [found["watched"][2] / found["bare"][2] for found in rounds]
        starts = [found["watched"][0] - found["bare"][0] for found in rounds]
        bare = [found["bare"][1] / updates for found in rounds]
        slept = [found["sleeper"][1] / found["bare"][1] for found in rounds if "sleeper" in found]
        each = ", ".join(f"{r:.3f}" for r in ratios)
        alone = f"{statistics.median(slept):.3f}" if slept else "–"
        lines.append(
            f"| {name} | {updates:,} | {1e3 * statistics.median(bare):.2f} | **{statistics.median(ratios):.3f}** ({each}) | "
            f"{statistics.median(walls):.3f} | {alone} | {statistics.median(starts):.2f} | {bar} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--job", action="append", help="only jobs whose names hold this")
    args = parser.parse_args()
    names = [n for n in JOBS if not args.job or any(part in n for part in args.job)]
    compileall.compile_dir(ROOT / "src", quiet=1)  # as pip does when it installs a package
    table(args.seconds, args.pairs, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
