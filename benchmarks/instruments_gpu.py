"""`fallline measure memory` and `fallline measure time` on a GPU: what was planted is found, and what it costs to look.

    PYTHONPATH=src python benchmarks/instruments_gpu.py                      # all; tables, and $OUT/instruments.json
    PYTHONPATH=src python benchmarks/instruments_gpu.py memory time          # some of: memory leak oom compiled_memory time same; of time: gpt_time slow tiny stalling compiled
    PYTHONPATH=src python benchmarks/instruments_gpu.py --small              # smaller, to try the script itself on a CPU
    python benchmarks/instruments_gpu.py --write instruments.json ...        # the section of RESULTS.md, from such files; the last counts

Needs torch, nothing else. Every case is a script of its own, run as people run it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEAD = """\
import os, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
SMALL = bool(os.environ.get("SMALL"))
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

class GPT(nn.Module):
    def __init__(self, layers, width, heads, vocabulary=8192, context=1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

layers, width, heads, context, batch = (2, 64, 2, 32, 4) if SMALL else (12, 1024, 16, 1024, 16)
def batches(size=batch, steps=400):
    data = torch.randint(0, 8192, (size * steps // 8, context + 1))
    return DataLoader(TensorDataset(data), size, shuffle=True)
def loss_of(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
"""

LOOP = """\
model = GPT(layers, width, heads, context=context).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
{setup}
for ids, in batches():
    ids = ids.to(device)
    loss = loss_of(model, ids)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
{after}
"""


def loop(setup: str = "", after: str = "") -> str:
    indented = "\n".join("    " + line for line in after.splitlines())
    return HEAD + LOOP.format(setup=setup, after=indented)


TINY = """\
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(100))).to(device)
{wrap}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(200):
    loss = model(torch.randn(32, 64, device=device)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

SLOW = """\
class Slow(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        until = time.perf_counter() + 0.02  # twenty milliseconds of work per sample
        while time.perf_counter() < until:
            pass
        return torch.randint(0, 8192, (context + 1,))
model = GPT(2, width, heads, context=context).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for ids in DataLoader(Slow(), batch):
    loss = loss_of(model, ids.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

STALLING = """\
model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(16))).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
seen = 0.0
for step in range(400):
    x = torch.randn(256, 2048, device=device)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += loss.item()  # stall
"""

PRINTS = 'print(f"loss {loss.item():.17g}")'


class Bench:
    """Writes scripts, runs commands, collects what they say."""

    def __init__(self, folder: Path, small: bool) -> None:
        self.folder = folder
        self.small = small
        self.found: dict[str, Any] = {}
        self.checks: list[tuple[str, bool]] = []

    def script(self, name: str, text: str) -> str:
        (self.folder / f"{name}.py").write_text(text)
        return f"{name}.py"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        source = str(Path(__file__).resolve().parents[1] / "src")
        env = dict(os.environ, PYTHONPATH=source, CUBLAS_WORKSPACE_CONFIG=":4096:8")
        if self.small:
            env["SMALL"] = "1"
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def measure(self, verb: str, script: str, *options: str) -> dict[str, Any]:
        begun = time.monotonic()
        done = self.run(
            "-m", "fallline", "measure", verb, "--output-format", "json", *options, script
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            print(done.stdout[-500:], done.stderr[-3000:])
            raise
        answer["wall"] = round(time.monotonic() - begun, 1)
        answer["stderr"] = done.stderr[-3000:]
        answer["exit"] = done.returncode
        self.found[f"{verb}: {script}"] = answer
        return answer

    def check(self, what: str, holds: bool) -> None:
        self.checks.append((what, holds))
        print(f"  {'ok  ' if holds else 'FAIL'} {what}", flush=True)


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def mib(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB"


def memory(bench: Bench) -> None:
    """A GPT: the ledger against the allocator, and every remedy computed and tried."""
    name = bench.script("gpt", loop())
    found = bench.measure("memory", name, "--try-for", "200")
    peak, allocator = found["peak"], found.get("allocator")
    print(f"\nGPT, {found['verdict']} ({found['wall']} s)")
    for role, size in sorted(peak["holders"].items(), key=lambda item: -item[1]):
        print(f"  {mib(size):>12}  {size / peak['bytes']:4.0%}  {role}")
    for module, size in list(found["activations"]["modules"].items())[:5]:
        print(f"  {mib(size):>12}        {module}")
    if allocator:
        print(
            f"  allocator: peak {mib(allocator['allocated_peak'])}, reserved {mib(allocator['reserved_peak'])}, fragmentation {allocator['fragmentation']}"
        )
        for line in allocator["lines_at_peak"][:5]:
            print(f"  {mib(line['bytes']):>12}  {line['path']}:{line['line']}")
        ratio = peak["bytes"] / allocator["allocated_peak"]
        bench.check(
            f"tensors account for {ratio:.1%} of the allocator's peak (90 to 102 %)",
            0.9 < ratio < 1.02,
        )
    for remedy in found["remedies"]:
        tried = (
            f"{remedy['saved'] / peak['bytes']:.0%}"
            if remedy["saved"] is not None
            else remedy["problem"] or "-"
        )
        print(
            f"  {remedy['name']:<20} computed {remedy['saves'] / peak['bytes']:5.0%}   tried {tried}"
        )
    tried = [r for r in found["remedies"] if r["saved"] is not None]
    bench.check(f"{len(tried)} remedies were tried", len(tried) >= 2)
    worst = max((abs(r["saves"] - r["saved"]) / peak["bytes"] for r in tried), default=1.0)
    bench.check(
        f"what was computed is at most {worst:.0%} of the peak from what was tried (15 %)",
        worst < 0.15,
    )
    bench.check("training leaves nothing behind", not found["growth"]["leaks"])


def leak(bench: Bench) -> None:
    """Outputs kept on the device, and a kept loss."""
    text = loop(
        "kept = []",
        "kept.append(model.norm(torch.ones(64, width, device=device)).detach() + 1)  # leak",
    )
    found = bench.measure("memory", bench.script("leak", text), "--try-for", "0")
    growth = found["growth"]
    print(
        f"\nleak: {growth['bytes_per_update']:.0f} bytes per update at {growth['lines'][:1]}, held by {growth['holder']}"
    )
    bench.check(
        "the leaking line is named",
        bool(growth["lines"]) and growth["lines"][0]["line"] == line_of(text, "# leak"),
    )
    bench.check("and its holder", growth["holder"] == "kept")
    text = loop("total = 0.0", "total += loss  # keeps")
    found = bench.measure("memory", bench.script("graph", text), "--try-for", "0")
    growth = found["growth"]
    kept = growth["kept_at"] or {}
    print(
        f"kept loss: {growth['graphs_kept']} graphs of {growth['nodes_per_graph']} nodes, kept at line {kept.get('line')}"
    )
    bench.check(
        "the statement that keeps the loss is named", kept.get("line") == line_of(text, "# keeps")
    )


def compiled_memory(bench: Bench) -> None:
    """Compiled code allocates past Python: what tensors do not account for is said, and the allocator's lines are there."""
    text = loop("model = torch.compile(model)").replace("GPT(layers,", "GPT(2,")
    found = bench.measure("memory", bench.script("compiled_memory", text), "--try-for", "0")
    allocator = found["allocator"]
    seen = found["peak"]["bytes"] / allocator["allocated_peak"]
    print(
        f"\ncompiled: tensors account for {seen:.0%} of the allocator's peak of {mib(allocator['allocated_peak'])}; {found['peak']['holders']}"
    )
    print(f"  lines {allocator['lines_at_peak'][:5]}, fragmentation {allocator['fragmentation']}")
    bench.check("parameters are known", found["peak"]["holders"]["parameters"] > 0)
    bench.check("the rest is said", allocator["not_seen_by_operations"] >= 0)


def oom(bench: Bench) -> None:
    """A real out-of-memory error: with a twentieth of the device, and a batch that does not fit."""
    limit = "torch.cuda.set_per_process_memory_fraction(0.05)"
    found = bench.measure(
        "memory",
        bench.script("oom", loop(limit).replace("in batches()", "in batches(64)")),
        "--try-for",
        "0",
    )
    told = found["out_of_memory"]
    print(f"\nout of memory, exit {found['exit']}:\n{told['text'] if told else found['stderr']}")
    bench.check("it is explained", told is not None and told["holders"]["activations"] > 0)
    bench.check(
        "the script ends as ever", found["exit"] == 1 and "OutOfMemoryError" in found["stderr"]
    )


def timing(bench: Bench, only: str = "") -> None:
    """Five scripts, each slow for its own reason."""
    rows: list[tuple[str, str, str, Callable[[dict[str, Any]], bool]]] = [
        ("gpt_time", loop(), "device", lambda f: f["profiled"]["idle_share"] < 0.2),
        (
            "slow",
            HEAD + SLOW,
            "input",
            lambda f: bool(f["loader"]) and f["loader"]["best"]["num_workers"] > 0,
        ),
        ("tiny", HEAD + TINY.format(wrap=""), "host", lambda f: f["profiled"]["kernels"] > 300),
        (
            "stalling",
            HEAD + STALLING,
            "",
            lambda f: f["stalls"][0]["line"] == line_of(HEAD + STALLING, "# stall"),
        ),
        (
            "compiled",
            HEAD + TINY.format(wrap="model = torch.compile(model)"),
            "",
            lambda f: f["compiled"]["graphs"] >= 1,
        ),
    ]
    for name, text, kind, right in rows:
        if only not in ("", name):
            continue
        found = bench.measure("time", bench.script(name, text), "--updates", "30")
        device = found["profiled"] or {}
        print(f"\n{name}: {found['verdict']['text']} ({found['wall']} s)\n  next: {found['next']}")
        print(
            f"  per update {found['seconds_per_update'] * 1e3:.2f} ms: "
            + ", ".join(f"{p} {s:.0%}" for p, s in found["shares"].items())
        )
        if device:
            idle = {p: round(s * 1e3, 3) for p, s in device["idle"].items()}
            print(
                f"  device busy {device['busy'] * 1e3:.2f} of {device['window'] * 1e3:.2f} ms, {device['kernels']} kernels, idle (ms) {idle}"
            )
        for stall in found["stalls"][:3]:
            print(f"  stall {stall}")
        if found["loader"]:
            for trial in found["loader"]["tried"]:
                print(f"  loader {trial}")
        print(f"  compiled {found['compiled']}")
        if kind:
            bench.check(f"{name} is {kind}-bound", found["verdict"]["kind"] == kind)
        bench.check(f"{name}: its cause is found", right(found))


def same(bench: Bench) -> None:
    """The losses of a script alone, under memory, and under time; and how much longer its updates take."""
    clocked = "torch.use_deterministic_algorithms(True)\nbegun = []\n"
    after = (
        PRINTS
        + '\nbegun.append(time.perf_counter())\nif len(begun) == 24: print("seconds", (begun[-1] - begun[12]) / 11); break'
    )
    name = bench.script("same", loop(clocked, after))
    outputs = {
        "alone": bench.run(name).stdout,
        "alone again": bench.run(name).stdout,
        "memory": bench.run(
            "-m", "fallline", "measure", "memory", "--updates", "30", "--try-for", "0", name
        ).stderr,
        "time": bench.run("-m", "fallline", "measure", "time", "--updates", "100", name).stderr,
    }
    losses = {who: re.findall(r"loss (\S+)", text) for who, text in outputs.items()}
    seconds = {
        who: [float(s) for s in re.findall(r"seconds (\S+)", t)] for who, t in outputs.items()
    }
    print(f"\nthe same script: {losses['alone'][:3]} ...; seconds per update {seconds}")
    bench.found["same"] = {"losses": losses, "seconds": seconds}
    for who in ("alone again", "memory", "time"):
        bench.check(
            f"{who}: {len(losses[who])} losses are the same bit for bit",
            bool(losses[who]) and losses[who] == losses["alone"][: len(losses[who])],
        )


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "memory": memory,
    "leak": leak,
    "oom": oom,
    "compiled_memory": compiled_memory,
    "time": timing,
    "same": same,
}
ONE = ("gpt_time", "slow", "tiny", "stalling", "compiled")


def write(files: list[str]) -> None:
    """The section of RESULTS.md; what a later file has measured again replaces what an earlier one has."""
    from results import write_section

    found: dict[str, Any] = {}
    where = ""
    for file in files:
        read = json.loads(Path(file).read_text())
        found |= read["found"]
        where = read.get("where", where)
    memory = found["memory: gpt.py"]
    peak, allocator = memory["peak"]["bytes"], memory["allocator"]
    held = ", ".join(
        f"{role} {mib(size)}"
        for role, size in sorted(memory["peak"]["holders"].items(), key=lambda item: -item[1])
        if size > 2**20
    )
    lines = [
        f"`python benchmarks/instruments_gpu.py`, {where}. Each case is a script of its own, run as `fallline measure VERB SCRIPT`.",
        "",
        f"**memory**, a GPT of 12 layers, width 1024, 16 sequences of 1024 in fp32: tensors {mib(peak)} at the peak ({held}), the allocator {mib(allocator['allocated_peak'])}: "
        f"**{peak / allocator['allocated_peak']:.1%}** accounted for; reserved {mib(allocator['reserved_peak'])}.",
        "",
        "| remedy | saves of the peak, computed | tried |",
        "|---|---|---|",
    ]
    for remedy in memory["remedies"]:
        tried = "-" if remedy["saved"] is None else f"{remedy['saved'] / peak:.0%}"
        lines.append(f"| {remedy['name']} | {remedy['saves'] / peak:.0%} | {tried} |")
    leak, graph = found["memory: leak.py"]["growth"], found["memory: graph.py"]["growth"]
    told = found["memory: oom.py"]["out_of_memory"]
    share = told["holders"]["activations"] / sum(told["holders"].values())
    lines += [
        "",
        f"Planted leak: {leak['bytes_per_update']:,.0f} bytes per update at the planted line, held by `{leak['holder']}`. Kept loss: {graph['graphs_kept']} graphs of {graph['nodes_per_graph']} nodes, the keeping statement named. "
        f"Out of memory with a twentieth of the device: `{told['op']}` in {told['module']}, activations {share:.0%}; exit status {found['memory: oom.py']['exit']}.",
        "",
        "**time**",
        "",
        "| script | one update | verdict | device busy |",
        "|---|---|---|---|",
    ]
    for name in ONE:
        one = found[f"time: {name}.py"]
        device = one["profiled"]
        lines.append(
            f"| {name} | {one['seconds_per_update'] * 1e3:.1f} ms | {one['verdict']['text']} | {device['busy'] / device['window']:.0%}, {device['kernels']} kernels |"
        )
    waits = {
        (t["num_workers"], t["pin_memory"]): t["wait"]
        for t in found["time: slow.py"]["loader"]["tried"]
    }
    shown = ", ".join(f"{n}: {w * 1e3:.0f} ms" for (n, pin), w in sorted(waits.items()) if not pin)
    seconds = {who: values[0] for who, values in found["same"]["seconds"].items()}
    alone = seconds["alone"]
    lines += [
        "",
        "Lines that waited for the device: "
        + "; ".join(
            f"{name}, {stall['what']} at line {stall['line']}, {stall['seconds'] * 1e6:.0f} µs per update"
            for name in ONE
            for stall in found[f"time: {name}.py"]["stalls"][:1]
        )
        + ".",
        "",
        f"The slow loader (20 ms of work per sample), wait per batch by number of workers: {shown}.",
        "",
        f"**same**: {len(found['same']['losses']['memory'])} losses alone, under memory and under time are equal bit for bit (deterministic algorithms; two bare runs agree). "
        f"An update takes {alone:.4f} s alone, {seconds['memory'] / alone:.3f} times that under memory, {seconds['time'] / alone:.3f} times under time.",
    ]
    write_section("memory and time on a GPU", "\n".join(lines))


def machine() -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{time.strftime('%Y-%m-%d')}, {name}, torch {torch.__version__}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sections",
        nargs="*",
        help="memory, leak, oom, time, same, or one script of time (default: all)",
    )
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--write", nargs="+", metavar="FILE")
    args = parser.parse_args()
    if args.write:
        write(args.write)
        return 0
    out = Path(os.environ.get("OUT", "."))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.small)
        begun = time.monotonic()
        for name in args.sections or SECTIONS:
            try:
                timing(bench, name) if name in ONE else SECTIONS[name](bench)
            except Exception as error:
                bench.check(f"{name}: {type(error).__name__}: {error}", False)
            (out / "instruments.json").write_text(
                json.dumps(
                    {"where": machine(), "found": bench.found, "checks": bench.checks}, indent=1
                )
            )
    failed = [what for what, holds in bench.checks if not holds]
    print(
        f"\n{len(bench.checks) - len(failed)} of {len(bench.checks)} checks hold, {time.monotonic() - begun:.0f} s"
    )
    for what in failed:
        print(f"  FAIL {what}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
