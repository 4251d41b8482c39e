"""What watching costs: bare training against fallline and its peers, alternating in one process.

    python benchmarks/watch.py            # everything; a few minutes on an idle machine
    python benchmarks/watch.py --quick    # fallline only, fewer blocks
    python benchmarks/watch.py --write    # and into RESULTS.md

The job is a transformer of 6 layers, d = 256, batch 16, sequence 64, AdamW. Blocks of bare and of watched steps take turns,
so that a busy machine slows both; what counts is CPU time of the whole process, background threads included. Memory is
not given back to the system between steps (`HEAP`): else thousands of page faults come and go by luck, bare or watched.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import watch_runs
from results import machine, write_section
from torch import nn
from watch_peers import PEERS, Switch, Tool

Step = Callable[[], None]
# Watched before anything is compared: fallline looks more closely at the first updates.
FIRST = 40
WELL_KNOWN = (
    600  # updates after which those that go like the others are only compared, and samples are few
)
HEAP = {
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TOP_PAD_": "67108864",
}


class Job:
    """One training step of a model, and what a tool needs to know about it."""

    def __init__(
        self, model: nn.Module, batch: Callable[[], Any], twin: Callable[[], Job] | None = None
    ) -> None:
        self.model = model
        self.batch = batch
        self.twin = twin  # makes another like it
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.after_backward: Callable[[int, torch.Tensor], None] | None = None
        self.count = 0

    def step(self) -> None:
        inputs, targets = self.batch()
        loss = nn.functional.cross_entropy(self.model(inputs).flatten(0, -2), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        if self.after_backward is not None:
            self.after_backward(self.count, loss)
        self.optimizer.step()
        self.count += 1


class Transformer(nn.Module):
    def __init__(self, layers: int = 6, width: int = 256, words: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)))


def transformer_job() -> Job:
    torch.manual_seed(0)
    tokens = torch.randint(0, 512, (64, 16, 64))
    batch = lambda: (tokens[torch.randint(0, 64, ())], tokens[0])  # noqa: E731
    return Job(Transformer(), batch, transformer_job)


def short_step_job() -> Job:
    """The same in small: a step of about 20 ms, the shortest that the bar of one percent is about."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 512, (64, 6, 64))
    model = Transformer(layers=2, width=128)
    return Job(model, lambda: (tokens[torch.randint(0, 64, ())], tokens[0]))


def many_tensors_job(layers: int = 75, width: int = 8) -> Job:
    """150 small tensors: what is left is the fixed cost of an update."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    inputs, targets = torch.randn(4, width), torch.randint(0, width, (4,))
    return Job(model, lambda: (inputs, targets))


def hollow_job(modules: int) -> Job:
    """As many modules, and nothing to compute."""
    model = nn.Sequential(nn.Linear(1, 2), *(nn.Identity() for _ in range(modules)))
    inputs, targets = torch.ones(1, 1), torch.zeros(1, dtype=torch.long)
    return Job(model, lambda: (inputs, targets))


# -- the tools ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def session_of(budget: float = 0.01) -> Iterator[Any]:
    """A watcher that watches nothing yet."""
    from fallline.verdict import judge
    from fallline.watcher.session import Options, Session

    with tempfile.TemporaryDirectory() as folder:
        session = Session(Options(Path(folder) / "run", budget=budget), judge)
        yield session
        session.finish()
        assert session.failed is None, session.failed


def install(session: Any) -> None:
    from fallline.taps.gradients import GRADIENT_READ, GRADIENT_WRITTEN
    from fallline.taps.tap import switch
    from fallline.watcher.by_hand import PROBED_UPDATES

    session.start(rebind=True)
    if session.progress.steps > PROBED_UPDATES:
        session.taps.leave(GRADIENT_READ, GRADIENT_WRITTEN)  # as it does by itself in a run
    switch.silent = False
    session.guard._last = time.perf_counter()  # what was not watched until now earns no budget
    for numbers in session.updates._measures.numbers.values():
        numbers.resume()


def pauses(session: Any) -> Switch:
    """Watching on and off with the taps in place. The time in between earns no budget, and loses none."""
    from fallline.taps.tap import switch

    begun = [time.perf_counter(), time.process_time()]

    def on() -> None:
        switch.silent = False
        session.guard._last += time.perf_counter() - begun[0]
        for numbers in session.updates._measures.numbers.values():
            numbers._last += time.process_time() - begun[1]

    def off() -> None:
        if not switch.silent:
            switch.silent = True
            begun[:] = time.perf_counter(), time.process_time()

    return on, off


@contextlib.contextmanager
def fallline(job: Job, budget: float = 0.01) -> Iterator[Switch]:
    with session_of(budget) as session:
        yield lambda: install(session), lambda: session.taps.stop()


TOOLS: dict[str, Tool] = {"fallline (default budget)": fallline, **PEERS}


# -- measuring ---------------------------------------------------------------------------------------------------


def cpu(step: Step, times: int) -> tuple[float, float]:
    """CPU and wall seconds per step."""
    begun, started = time.process_time(), time.perf_counter()
    for _ in range(times):
        step()
    return (time.process_time() - begun) / times, (time.perf_counter() - started) / times


def paired(
    job: Job, on: Callable[[], None], off: Callable[[], None], blocks: int, steps: int
) -> dict[str, float]:
    """Bare and watched blocks in turn, each pair in the other order than the one before."""
    pairs = []
    on()
    first = cpu(job.step, FIRST)[0]
    off()
    for block in range(blocks + 1):
        found = {}
        for watched in (True, False) if block % 2 else (False, True):
            if watched:
                on()
            for _ in range(2):  # a switch empties Python's caches; a run switches once
                job.step()
            found[watched] = cpu(job.step, steps)
            if watched:
                off()
        if block:  # the first pair warms up both
            pairs.append((*found[False], *found[True]))
    ratios = sorted(watched / bare for bare, _, watched, _ in pairs)
    return {
        "first": first / statistics.median(p[0] for p in pairs),
        "bare": statistics.median(p[0] for p in pairs),
        "bare_wall": statistics.median(p[1] for p in pairs),
        "watched": statistics.median(p[2] for p in pairs),
        "wall": statistics.median(p[3] / p[1] for p in pairs),
        "ratio": statistics.median(ratios),
        "mean": sum(p[2] for p in pairs) / sum(p[0] for p in pairs),
        "low": ratios[len(ratios) // 4],
        "high": ratios[-1 - len(ratios) // 4],
        "added": statistics.median(p[2] - p[0] for p in pairs),
    }


def table(blocks: int, steps: int, tools: list[str]) -> list[str]:
    lines = [
        f"| tool | CPU x, median of pairs (quartiles) | CPU x, total | wall x | first {FIRST} steps, CPU x |",
        "|---|---|---|---|---|",
    ]
    nothing: Switch = (lambda: None, lambda: None)
    found = paired(transformer_job(), *nothing, blocks, steps)
    lines.append(_row("bare against bare (noise)", found))
    print(lines[-1], flush=True)
    bare_ms = 1000 * found["bare_wall"]
    for name in tools:
        job = transformer_job()
        try:
            with TOOLS[name](job) as switch:
                found = paired(job, *switch, blocks, steps)
        except Exception as error:
            lines.append(
                f"| {name} | not measured: {type(error).__name__}: {str(error)[:80]} | | |"
            )
        else:
            lines.append(_row(name, found))
        print(lines[-1], flush=True)
    return [
        f"A bare step takes {bare_ms:.0f} ms; {blocks} pairs of {steps} steps each.",
        "",
        *lines,
    ]


def _row(name: str, found: dict[str, float]) -> str:
    return f"| {name} | {found['ratio']:.3f} ({found['low']:.3f} - {found['high']:.3f}) | {found['mean']:.3f} | {found['wall']:.2f} | {found['first']:.2f} |"


Estimate = tuple[float, float]  # seconds an update, and the standard error


def turns(
    job: Job, on: Callable[[], None], off: Callable[[], None], rounds: int, first: int, steps: int
) -> tuple[Estimate, float]:
    """What `on` adds to an update in the thread that trains: CPU seconds, and those of an update with it off.

    Turns are short, and each pair is in the other order than the one before: how fast this machine is changes within
    seconds. After each switch `first` updates are not counted. Pairs that differ by more than half an update are left out:
    another program did that, in either turn; nothing that we do now and then, such as a sample, takes as long.
    """
    added, bare = [], []
    for number in range(rounds):
        found = {}
        for watched in (True, False) if number % 2 else (False, True):
            (on if watched else off)()
            for _ in range(first):
                job.step()
            begun = time.thread_time()
            for _ in range(steps):
                job.step()
            found[watched] = (time.thread_time() - begun) / steps
        added.append(found[True] - found[False])
        bare.append(found[False])
    off()
    usual = statistics.median(bare)
    kept = [difference for difference in added if abs(difference) < usual / 2]
    return (statistics.fmean(kept), statistics.stdev(kept) / len(kept) ** 0.5), usual


def background() -> float:
    """CPU seconds of all threads but this one."""
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(t.ident))
        for t in threading.enumerate()
        if t.ident is not None and t is not threading.current_thread()
    )


def well_known(job: Job, rounds: int) -> Cost:
    """What watching costs updates that are like many before.

    Taps stay in place from the beginning of a run to its end, and Python has learnt the way through them. Putting them
    in place and taking them away makes it forget that for dozens of updates. So watching is switched on and off with the
    taps in place, at every update. Threads of our own work in both turns, so they have their own clock. What taps
    that let everything pass cost is measured by itself, in long turns, with a model of as many modules that computes
    nothing: in a real one it is lost in the noise.
    """
    from fallline.taps.tap import switch

    with session_of() as session:
        install(session)
        for _ in range(WELL_KNOWN):
            job.step()

        def silent() -> None:
            install(session)
            switch.silent = True

        before, updates = background(), session.progress.steps
        watched, bare = turns(job, *pauses(session), rounds, 0, 1)
        switch.silent = False
        job.step()
        time.sleep(2.5)  # what is still to be written
        threads = (background() - before) / (session.progress.steps - updates)
        hollow = hollow_job(sum(1 for _ in job.model.modules()))
        taps, _ = turns(hollow, silent, lambda: session.taps.stop(), 100, 100, 200)
        switch.silent = False
    return Cost(rounds, bare, watched, taps, threads)


@dataclass
class Cost:
    """Of one update, in CPU seconds."""

    rounds: int
    bare: float
    watched: Estimate
    taps: Estimate
    threads: float

    @property
    def total(self) -> float:
        return self.watched[0] + self.taps[0] + self.threads

    @property
    def parts(self) -> str:
        return (
            f"{_us(self.watched)} for watching, {_us(self.taps)} for taps that let everything pass, "
            f"{1e6 * self.threads:.0f} µs in threads of our own; {self.rounds} pairs of updates"
        )


def at_first(job: Job, blocks: int = 40) -> float:
    """Seconds that each of the first hundred updates costs more, all of which are told in full."""
    with fallline(job) as (on, off):
        on()
        for _ in range(FIRST):
            job.step()
        found = []
        for _ in range(blocks):
            off()
            bare = cpu(job.step, 1)[0]
            on()
            found.append(cpu(job.step, 1)[0] - bare)
        off()
        return statistics.median(found)


def fixed_cost(rounds: int) -> str:
    cost = well_known(many_tensors_job(), rounds)
    first = at_first(many_tensors_job())
    return (
        f"Fixed cost of an update with 150 tensors of 8 x 8 or 8 values (a bare step takes {1000 * cost.bare:.2f} ms of CPU): "
        f"**{1e6 * cost.total:.0f} µs** of CPU (bar: 300 µs): {cost.parts}. "
        f"{1e6 * first:.0f} µs in the first hundred updates, which are told in full."
    )


def short_steps(rounds: int) -> str:
    job = short_step_job()
    cost = well_known(job, rounds)
    nothing: Switch = (lambda: None, lambda: None)
    noise, _ = turns(short_step_job(), *nothing, rounds // 2, 0, 1)
    return (
        f"Steps of {1e3 * cost.bare:.1f} ms of CPU (2 layers, d = 128, {len(list(job.model.parameters()))} tensors): "
        f"**{1 + cost.total / cost.bare:.4f}** of bare (bar: 1.01): {cost.parts}. Bare against bare: {_us(noise)}."
    )


def _us(estimate: Estimate) -> str:
    return f"{1e6 * estimate[0]:.0f} ± {1e6 * estimate[1]:.0f} µs"


def memory(updates: int = 1_000_000) -> str:
    """A million updates through the recorder and the live history, with samples of 150 parameters now and then."""
    import resource

    from fallline.report.live import Live
    from fallline.runs.samples import COLUMNS, Layout, ParameterInfo, Sample
    from fallline.runs.update import UpdateRow
    from fallline.watcher.recorder import Recorder

    layout = Layout(
        0, [ParameterInfo(f"layer.{i}.weight", "Linear", i, (8, 8)) for i in range(150)]
    )
    numbers = [1.0] * (150 * len(COLUMNS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        live = Live(nowhere)
        recorder = Recorder(Path(folder) / "run", listen=live.row)
        seconds = {"data": 0.001, "forward": 0.002, "backward": 0.003, "step": 0.001}
        for index in range(updates):
            row = UpdateRow(
                index, loss=1.0, lr=0.1, grad_norm=1.0, seconds=dict(seconds), memory=1, graphs=1
            )
            if index % 100 == 0:
                row.sample = Sample(layout, lambda: (numbers, 0.0), index=index)
            recorder.update(row)
            while len(recorder._queue) > 5_000:
                time.sleep(0.01)
        recorder.close()
        size = sum(f.stat().st_size for f in recorder.folder.iterdir()) / 2**20
        dropped = recorder.dropped
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    return (
        f"A million updates of 150 parameters, a sample every 100 (simulated): the process grows by **{grown:.0f} MB** "
        f"at its highest (bar: 100 MB), the file is {size:.0f} MB, {dropped} rows dropped."
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tools", default="", help="only the tools whose names hold this")
    parser.add_argument("--only", choices=("table", "fixed", "short", "memory", "runs"))
    args = parser.parse_args()
    if not os.environ.keys() & HEAP.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **HEAP})
    torch.set_num_threads(1)
    tools = list(TOOLS)[:1] if args.quick else [t for t in TOOLS if args.tools in t]
    parts = []
    if args.only in (None, "memory"):
        parts.append(memory(100_000 if args.quick else 1_000_000))
        print(parts[-1], flush=True)
    if args.only in (None, "fixed"):
        parts.append(fixed_cost(500 if args.quick else 8_000))
        print(parts[-1], flush=True)
    if args.only in (None, "short"):
        parts.append(short_steps(200 if args.quick else 4_000))
        print(parts[-1], flush=True)
    if args.only in (None, "runs"):
        parts.append("\n".join(watch_runs.table(10 if args.quick else 60, list(watch_runs.JOBS))))
    if args.only in (None, "table"):
        parts.insert(0, "\n".join(table(args.blocks, args.steps, tools)))
    if args.write:
        body = f"`python benchmarks/watch.py`, {machine()}, torch {torch.__version__}, one thread. The machine was shared.\n\n"
        write_section("watch", body + "\n\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
