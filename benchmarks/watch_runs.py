"""What `fallline run` costs whole runs with short steps: CPU time of the process, watched and bare side by side.

    python benchmarks/watch_runs.py [--seconds 60] [--job NAME ...]                # five jobs one after the other, 16 minutes alone on a machine
    python benchmarks/watch_runs.py --all                                           # also FSDP2, Accelerate and Lightning
    python benchmarks/watch_runs.py --lanes tiny=2 --lanes DDP=3 [--raw FILE]       # all at once, each lane on its own core, or one for each rank

Each job is a script of its own and makes as many updates as fill so many seconds when it runs bare. It is started bare, watched and
bare again, all at once, and the three take turns: each makes a few updates (about 15 ms) and hands over. Whatever else the machine
does in that time slows all of them alike, so the ratio of two of them can be trusted where their seconds cannot. Two processes that
do the same still differ, by where their memory happens to lie: the second bare copy shows by how much, and several lanes by how
much the mean of them can be off.

What counts is the CPU time of the whole process, all threads, from the first update to the end of the last; start-up is given apart.
Our threads work by the clock on the wall, which goes on while the others have their turns, so they take more here than in a run alone.
`first` is what the training thread takes longer in its first 400 updates, `then` what it takes in the second half.
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
import threading
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
MLP = """
model = nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(4096, 32), torch.randint(0, 8, (4096,))
for number in range(updates + 1):
    rows = torch.randint(0, 4096, (64,))
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

# name: (script, ranks, milliseconds of a bare update, the bar; none below the millisecond of which it speaks)
JOBS = {
    "0.2 ms: a tiny MLP, SGD": (MLP.replace("WIDTH", "64"), 1, 0.2, "–"),
    "1 ms: an MLP, SGD": (MLP.replace("WIDTH", "512"), 1, 1.1, 1.03),
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
FIRST = 400  # updates, all of which are watched or nearly so


class Cost(NamedTuple):
    """Of one process, rank 0 where there are several."""

    start: float  # CPU seconds until the first update
    cpu: float  # of all others, in all threads
    turns: list[float]  # of the training thread alone, in each turn


def together(
    script: str, ranks: int, updates: int, several: int, ways: list[str], cores: str | None = None
) -> list[Cost]:
    """Start the job in each of these ways, on these cores, and let them take turns."""
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
            running.append(_started(command, how, ranks, place, cores))
        with pipes[0].open("wb") as first:
            first.write(b"x")
        outputs = [process.communicate()[0] for process in running]
    return [_cost(output) for output in outputs]


def _started(
    command: list[str], how: str, ranks: int, place: Path, cores: str | None
) -> subprocess.Popen[str]:
    if how == "watched":
        command = ["-m", "fallline", "run", "--out", "run", *command]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [*launcher, *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    pinned = ["taskset", "-c", cores] if cores else []
    return subprocess.Popen(
        [*pinned, sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=environment, cwd=place,
    )  # fmt: skip


def _cost(output: str) -> Cost:
    for line in output.splitlines():
        if line.startswith("COST "):
            return Cost(*json.loads(line[5:]))
    raise SystemExit(output)


class Lane(NamedTuple):
    """What one lane shows, against the mean of its two bare processes."""

    cpu: float  # ratio
    thread: float  # ratio
    late: float  # ratio of the second half
    first: float  # seconds more in the first updates
    beside: float  # seconds of our threads
    again: float  # ratio of the two bare ones
    start: float  # CPU seconds more
    bare: float  # CPU seconds


def measured(costs: list[Cost], several: int) -> Lane:
    bare, watched, again = costs
    both = [(a + b) / 2 for a, b in zip(bare.turns, again.turns, strict=True)]
    thread, alone = sum(watched.turns), sum(both)
    cpu = (bare.cpu + again.cpu) / 2
    beside = watched.cpu - thread - (cpu - alone)
    head, half = -(-FIRST // several), len(both) // 2
    return Lane(
        watched.cpu / cpu,
        thread / alone,
        sum(watched.turns[half:]) / sum(both[half:]),
        sum(watched.turns[:head]) - sum(both[:head]),
        beside,
        again.cpu / bare.cpu,
        watched.start - (bare.start + again.start) / 2,
        cpu,
    )


def run_lane(name: str, seconds: float, cores: str | None, found: dict[str, list[Lane]]) -> None:
    script, ranks, ms, _ = JOBS[name]
    updates, several = int(1000 * seconds / ms), max(2, int(TURN / ms))
    costs = together(script, ranks, updates, several, ["bare", "watched", "bare"], cores)
    found.setdefault(name, []).append(measured(costs, several))


def row(name: str, seconds: float, lanes: list[Lane]) -> str:
    updates, bar = int(1000 * seconds / JOBS[name][2]), JOBS[name][3]

    def shown(field: str, digits: int = 3) -> str:
        values = [getattr(lane, field) for lane in lanes]
        if len(values) == 1:
            return f"{values[0]:.{digits}f}"
        error = statistics.stdev(values) / len(values) ** 0.5
        return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"

    ms = 1e3 * statistics.mean(lane.bare for lane in lanes) / updates
    cells = [
        name, len(lanes), f"{updates:,}", f"{ms:.2f}", f"**{shown('cpu')}**", shown("thread"),
        shown("first", 2), shown("late"), shown("beside", 2), shown("again"), shown("start", 2), bar,
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


HEADING = (
    "| job | lanes | updates | bare CPU, ms an update | CPU x | training thread x | first, s | then x | our threads, s | bare again x "
    "| start-up, CPU s more | bar |"
)


def at_once(wanted: list[str], seconds: float, found: dict[str, list[Lane]]) -> None:
    """All lanes, pinned side by side."""
    core, threads = 0, []
    for part, _, number in (text.partition("=") for text in wanted):
        name = next(n for n in JOBS if part in n)
        for _ in range(int(number or 1)):
            cores = ",".join(str(core + i) for i in range(JOBS[name][1]))
            core += JOBS[name][1]
            threads.append(threading.Thread(target=run_lane, args=(name, seconds, cores, found)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--all", action="store_true", help="all jobs")
    parser.add_argument("--job", action="append", help="only jobs whose names hold this")
    parser.add_argument("--lanes", action="append", help="JOB=N: so many at once, each on a core")
    parser.add_argument("--raw", type=Path, help="what each lane shows goes here, as JSON")
    args = parser.parse_args()
    wanted = args.job or [""]
    names = [n for n in JOBS if any(part in n for part in wanted)]
    if not args.all and not args.job:
        names = [n for n in names if not n.endswith(MORE)]
    compileall.compile_dir(ROOT / "src", quiet=1)  # as pip does when it installs a package
    found: dict[str, list[Lane]] = {}
    print(HEADING, f"|{'---|' * HEADING.count(' | ')}---|", sep="\n", flush=True)
    if args.lanes:
        at_once(args.lanes, args.seconds, found)
        print(*(row(name, args.seconds, lanes) for name, lanes in found.items()), sep="\n")
    for name in () if args.lanes else names:
        run_lane(name, args.seconds, None, found)
        print(row(name, args.seconds, found[name]), flush=True)
    if args.raw:
        args.raw.write_text(json.dumps({n: [x._asdict() for x in found[n]] for n in found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
