"""What `fallline run` costs whole runs with short steps: CPU time of the process, watched and bare side by side.

    python benchmarks/watch_runs.py [--seconds 40] [--job NAME ...]                # five jobs, about 11 minutes alone on a machine
    python benchmarks/watch_runs.py --all                                           # also FSDP2, Accelerate and Lightning

Each job is a script of its own and makes as many updates as fill so many seconds when it runs bare. It is started bare, watched and
bare again, all at once, and the three take turns: each makes a few updates (about 15 ms) and hands over. Whatever else the machine
does in that time slows all of them alike, so the ratio of two of them can be trusted where their seconds cannot. The second bare copy
shows how much two processes that do the same differ.

What counts is the CPU time of the whole process, all threads, from the first update to the end of the last; start-up is given apart.
The first of the ratios is of that. The second is of the training thread alone, the median over all turns: what an update costs while
watching rests, which it does nearly always.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

HEAD = """
import json, os, sys, time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
updates, several = int(sys.argv[1]), int(sys.argv[2])
class Turns:
    def __init__(self, mine, next):
        self.pipes = [os.open(path, os.O_RDWR) for path in (mine, next)]
        self.blocks, self.first = [], None
    def wait(self):
        os.read(self.pipes[0], 1)
        self.began = time.thread_time()
    def hand_over(self):
        self.blocks.append(time.thread_time() - self.began)
        os.write(self.pipes[1], b"x")
    def made(self, number):
        if number == 0:
            self.first = time.process_time()
            self.wait()
        elif number % several == 0:
            self.hand_over()
            self.wait()
    def over(self):
        self.hand_over()
        print("COST", json.dumps([self.first, time.process_time() - self.first, self.blocks]), flush=True)
class Nobody:
    def made(self, number): pass
    def over(self): pass
turns = Nobody() if int(os.environ.get("RANK", 0)) else Turns(*sys.argv[3:5])
"""
TAIL = """
    turns.made(number)
turns.over()
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
# The Trainer has the loop: the turns are taken in it, and the loop behind it has nothing to do.
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
        turns.made(self.global_step - 1)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=None)
trainer = lightning.Trainer(
    max_steps=updates + 1, max_epochs=-1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
)
trainer.fit(Task(), data)
for number in ():
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


MORE = ("FSDP2", "Accelerate", "Lightning")  # only with --all
TURN = 15.0  # milliseconds


class Cost(NamedTuple):
    """Of one process, rank 0 where there are several."""

    start: float  # CPU seconds until the first update
    cpu: float  # of all others, in all threads
    turns: list[float]  # of the training thread alone, in each turn


def together(script: str, ranks: int, updates: int, several: int, ways: list[str]) -> list[Cost]:
    """Start the job in each of these ways, and let them take turns."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pipes = [folder / f"turn{number}" for number in range(len(ways))]
        for pipe in pipes:
            os.mkfifo(pipe)
        running = []
        for number, how in enumerate(ways):
            place = folder / str(number)
            place.mkdir()
            (place / "job.py").write_text(HEAD + script + TAIL)
            after = pipes[(number + 1) % len(ways)]
            command = ["job.py", str(updates), str(several), str(pipes[number]), str(after)]
            running.append(_started(command, how, ranks, place))
        with pipes[0].open("wb") as first:
            first.write(b"x")
        outputs = [process.communicate()[0] for process in running]
    return [_cost(output) for output in outputs]


def _started(command: list[str], how: str, ranks: int, place: Path) -> subprocess.Popen[str]:
    if how == "watched":
        command = ["-m", "fallline", "run", "--out", "run", *command]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [*launcher, *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=environment, cwd=place,
    )  # fmt: skip


def _cost(output: str) -> Cost:
    for line in output.splitlines():
        if line.startswith("COST "):
            return Cost(*json.loads(line[5:]))
    raise SystemExit(output)


def _median(one: Cost, other: Cost) -> tuple[float, float]:
    """The ratio of their turns, and its standard error."""
    ratios = [a / b for a, b in zip(one.turns, other.turns, strict=False)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, 1.25 * (high - low) / 1.35 / len(ratios) ** 0.5


def _late(one: Cost, other: Cost) -> float:
    """The same of the second half."""
    late = [cost._replace(turns=cost.turns[len(cost.turns) // 2 :]) for cost in (one, other)]
    return _median(*late)[0]


def table(seconds: float, names: list[str]) -> list[str]:
    lines = [
        "| job | updates | bare CPU, ms an update | watched, CPU x | the training thread's turns, x (second half) | bare again, CPU x (turns x) | start-up, CPU s more | bar |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        script, ranks, ms, bar = JOBS[name]
        updates, several = int(1000 * seconds / ms), max(2, int(TURN / ms))
        bare, watched, again = together(script, ranks, updates, several, ["bare", "watched", "bare"])  # fmt: skip
        middle, error = _median(watched, bare)
        lines.append(
            f"| {name} | {updates:,} | {1e3 * bare.cpu / updates:.2f} | **{2 * watched.cpu / (bare.cpu + again.cpu):.3f}** | "
            f"{middle:.3f} ± {error:.3f} ({_late(watched, bare):.3f}) | {again.cpu / bare.cpu:.3f} ({_median(again, bare)[0]:.3f}) | "
            f"{watched.start - (bare.start + again.start) / 2:.2f} | {bar} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--all", action="store_true", help="all jobs")
    parser.add_argument("--job", action="append", help="only jobs whose names hold this")
    args = parser.parse_args()
    wanted = args.job or [""]
    names = [n for n in JOBS if any(part in n for part in wanted)]
    if not args.all and not args.job:
        names = [n for n in names if not n.endswith(MORE)]
    compileall.compile_dir(ROOT / "src", quiet=1)  # as pip does when it installs a package
    table(args.seconds, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
