"""`fallline measure precision` on an accelerator: what was planted is found, and what half precision gains.

PYTHONPATH=src python benchmarks/instruments_gpu_precision.py [--write] [--small]

Needs torch (with triton) and a CUDA device; `--small` is for trying it out on a CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from results import machine, write_section
from torch import Tensor, nn
from torch.nn import functional

import fallline
from fallline.instruments import autocast_table, measure_model
from fallline.instruments.precision.report import PrecisionReport

SECTION = "precision on a GPU"


class Block(nn.Module):
    """Attention and a feed-forward part, as in GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.drop(self.down(functional.gelu(self.up(self.before_wide(x)))))


class Language(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(ids))))


class Loud(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        wide = x * 400
        return wide * wide / 160_000  # planted: 160000 is more than float16 holds


def by_hand(scores: Tensor) -> Tensor:
    weights = torch.exp(scores)
    return -torch.log((weights / weights.sum(-1, keepdim=True)).diagonal()).mean()


def cases(device: str, small: bool) -> dict[str, Callable[[], Tensor]]:
    """Name → a loss whose answer is known."""
    torch.manual_seed(0)
    sizes = (64, 2, 2, 101) if small else (1024, 16, 8, 50_257)
    language = Language(*sizes).to(device)
    padded = Language(*sizes[:3], -(-sizes[3] // 8) * 8).to(device)  # 50264 words
    ids = torch.randint(0, sizes[3], (2, 16) if small else (8, 512), device=device)
    tiny = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    rows, targets = torch.randn(8, 16, device=device), torch.randint(0, 4, (8,), device=device)
    loud = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), Loud(), nn.Linear(16, 1)).to(device)
    points = functional.normalize(torch.randn(32, 16, device=device), dim=-1).requires_grad_()
    convolutions = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    ).to(device)  # fmt: skip
    side = 8 if small else 64
    pictures = torch.randn(4 if small else 64, 3, side, side, device=device)
    labels = torch.randint(0, 10, (len(pictures),), device=device)
    return {
        "GPT, 50257 words": lambda: functional.cross_entropy(
            language(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        ),
        "GPT, 50264 words": lambda: functional.cross_entropy(
            padded(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        ),
        "convolutions": lambda: functional.cross_entropy(convolutions(pictures), labels),
        "tiny MLP": lambda: functional.cross_entropy(tiny(rows), targets),
        "planted overflow": lambda: loud(rows * 3).mean(),
        "exp by hand, T=0.07": lambda: by_hand(points @ points.T / 0.07),
        "loss times 1e-7": lambda: tiny(rows).square().mean() * 1e-7,
    }


def row(name: str, report: PrecisionReport, seconds: float) -> str:
    half, brain = report.outcomes["fp16 autocast"], report.outcomes["bf16 autocast"]
    plain, scaled = half.plain, half.scaled
    lost = f"{plain.underflow:.1%}" if plain and half.loss == half.loss else "–"
    kept = f"{scaled.underflow:.1%}" if scaled else "–"
    first = half.first_failure
    broke = "–"
    if first is not None:
        at = first.call.at if first.call else None
        broke = f"`{first.op}` {first.module or ''} line {at.line if at else '?'}"
    change = report.repairs.get("fp16 autocast")
    changed = f"{change.kind} ({'tried, works' if change.verified else 'no'})" if change else "–"
    speeds = " / ".join(f"{report.speedups[n]:.2f}" for n in ("fp16 autocast", "bf16 autocast"))
    taken = " / ".join(f"{report.seconds[n] * 1e3:.3g}" for n in ("fp32", "bf16 autocast"))
    errors = " / ".join(
        f"{o.gradients.error:.0e}" if o.gradients and o.gradients.error is not None else "–"
        for o in (half, brain)
    )
    assert report.verdict is not None
    return (
        f"| {name} | **{report.verdict.choice}** | {taken} | {speeds} | {errors} | {lost} → {kept} | {broke} | {changed} "
        f"| {len(report.outcomes['fp32'].operations)} | {seconds:.1f} |"
    )


def untouched(device: str) -> bool:
    """Model, gradients, buffers and randomness after a probe, bit for bit."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    model.to(device)
    x = torch.randn(16, 8, device=device)
    model(x).mean().backward()
    kept = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    before = [t.clone() for t in kept if t is not None]
    state = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    fallline.precision_probe(lambda: model(x).mean().backward())
    now = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    after = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    same = all(torch.equal(a, b) for a, b in zip(before, now, strict=True) if b is not None)
    return same and torch.equal(state, after)


class Scale(torch.autograd.Function):
    """Right on any device; its gradients are summed to shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x, factor = ctx.saved_tensors
        return gradient * factor, (gradient * x).sum_to_size(factor.shape)


class OnTheCpu(Scale):
    """Makes a tensor where it always is: on the CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        return Scale.forward(ctx, x, factor) + torch.zeros(x.shape, dtype=x.dtype)


def modules_and_functions(device: str) -> str:
    """`measure_model` and `check_function` here: what was planted is found, what is right passes."""
    deep = nn.Sequential(*(m for _ in range(20) for m in (nn.Linear(64, 64), nn.ReLU())))
    flow = measure_model(deep.to(device)).flow
    assert flow is not None and flow.early_to_late is not None
    inputs = (torch.randn(4, 3), torch.randn(3))
    right = fallline.check_function(Scale, *inputs)
    wrong = [c.name for c in fallline.check_function(OnTheCpu, *inputs).failures]
    return (
        f"20 Linear and ReLU with torch's initialisation: the first layer's gradient is {flow.early_to_late:.1e} of the last one's. "
        f"A right Function passes {sum(c.passed is True for c in right.cases)} of {len(right.cases)} cases; one that makes a tensor on the CPU fails: {', '.join(wrong)}."
    )


def body(device: str, small: bool) -> str:
    table = autocast_table(device)
    counts: dict[str, int] = {}
    for rule in table.rules.values():
        counts[rule or "not called"] = counts.get(rule or "not called", 0) + 1
    lines, details, seen = [], [], None
    for name, loss in cases(device, small).items():
        began = time.perf_counter()
        report = fallline.precision_probe(loss)
        lines.append(row(name, report, time.perf_counter() - began))
        seen = seen or report
        details.append(f"### {name}\n\n{report.text()}")
    assert seen is not None
    odd = [m for m in seen.matmuls if m.seconds and m.padded_seconds][:4]
    padding = [
        f"| {m.op} {m.phase} {m.module} | {'x'.join(map(str, m.shape[1:]))} → {'x'.join(map(str, m.padded[1:]))} | {m.cost:+.2%} "
        f"| {m.seconds * 1e6:.0f} | {m.padded_seconds * 1e6:.0f} | {m.seconds / m.padded_seconds:.2f} |"
        for m in odd
        if m.seconds and m.padded_seconds
    ]
    print("\n".join(details), file=sys.stderr)
    native = ", ".join(
        f"{k} {'in hardware' if v else 'emulated' if v is False else 'not known'}"
        for k, v in seen.native.items()
    )
    return f"""\
`python benchmarks/instruments_gpu_precision.py`, {machine()}, torch {torch.__version__}, {seen.device_name}; {native}

| code | verdict | ms, fp32 / bf16 autocast | speed, fp16 / bf16 autocast | gradients off by | fp16 gradients lost → with scaling | first failure in fp16 autocast | smallest change | operations | s |
|---|---|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}

Matrix products of the GPT with 50257 words that are not in multiples of 8, as they are and padded, in the layout they have:

| product | m x k x n | arithmetic | µs | padded, µs | gain |
|---|---|---|---|---|---|
{chr(10).join(padding)}

Autocast table, asked from torch: {", ".join(f"{n} {rule}" for rule, n in sorted(counts.items()))}.
Model, gradients, buffers and randomness bit for bit as before: **{"yes" if untouched(device) else "NO"}**.
{modules_and_functions(device)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the section into RESULTS.md")
    parser.add_argument("--small", action="store_true", help="small models, on a CPU too")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.small:
        sys.exit("there is no CUDA device here; --small tries it out on the CPU")
    text = body(device, args.small)
    print(text)
    if args.write:
        write_section(SECTION, text)


if __name__ == "__main__":
    main()
