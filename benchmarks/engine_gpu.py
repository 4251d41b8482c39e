"""The one-pass gradient kernel on a GPU: right first, then fast. One command, nothing to install:

    PYTHONPATH=src python benchmarks/engine_gpu.py            # checks, then the table
    PYTHONPATH=src python benchmarks/engine_gpu.py --checks   # only the checks (tests/engine/test_gpu.py runs the same)
    PYTHONPATH=src python benchmarks/engine_gpu.py --sweep    # chunk, tile and warps tried against each other
    PYTHONPATH=src python benchmarks/engine_gpu.py --json out.json, and later --write out.json for RESULTS.md

Needs torch and triton. Without a CUDA device it says so and ends with status 0.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from typing import Any

import torch
from engine_gpu_checks import CHECKS, DEVICE, gpt_shapes, parameters_with_grad, torch_clip

import fallline
from fallline.engine.clipping import measure

SIZES: dict[str, tuple[list[tuple[int, ...]], torch.dtype]] = {
    "GPT-2 124M fp32": (gpt_shapes(12, 768), torch.float32),
    "GPT 1.3B fp32": (gpt_shapes(24, 2048, context=2048), torch.float32),
    "GPT 1.3B bf16": (gpt_shapes(24, 2048, context=2048), torch.bfloat16),
    "2,000 x 1,000 fp32": ([(1000,)] * 2000, torch.float32),
}


# -- time -----------------------------------------------------------------------------------------------------------


def times(
    variants: dict[str, Callable[[], Any]], rounds: int = 5, calls: int = 12
) -> dict[str, float]:
    """Median milliseconds of one call. Variants take turns in blocks of calls, so that all see the same machine."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for fn in variants.values():
        for _ in range(3):
            fn()
    for _ in range(rounds):
        for name, fn in variants.items():
            torch.cuda.synchronize()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
            events[0].record()
            for event in events[1:]:
                fn()
                event.record()
            torch.cuda.synchronize()
            # The first calls of a block find an empty queue and measure the host; training has a full one.
            samples[name] += [a.elapsed_time(b) for a, b in pairwise(events[2:])]
    return {name: statistics.median(values) for name, values in samples.items()}


def host_microseconds(fn: Callable[[], Any], calls: int = 50) -> float:
    torch.cuda.synchronize()
    values = []
    for _ in range(calls):
        begin = time.perf_counter()
        fn()
        values.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
    return statistics.median(values) * 1e6


SHAPES = ((512, 4), (1024, 8), (2048, 8), (2048, 16))
SWEEP = [(chunk, tile, warps) for chunk in (32768, 65536) for tile, warps in SHAPES]
SCALE_SWEEP = [(4096, 8), (8192, 16), (16384, 16), (32768, 16), (32768, 32)]


def fastest_read(nbytes: int) -> tuple[Callable[[], Any], str]:
    """The fastest plain read we have, so that the floor is an honest one."""
    from plain_read import buffers, plain_read

    flat, out = buffers(nbytes)
    variants: dict[str, Callable[[], Any]] = {
        f"chunk {c} tile {t} warps {w}": (lambda c=c, t=t, w=w: plain_read(flat, out, c, t, w))  # type: ignore[misc]
        for c, t, w in SWEEP
    }
    measured = times(variants, rounds=2, calls=8)
    best = min(measured, key=lambda name: measured[name])
    return variants[best], best


def copy_milliseconds(nbytes: int) -> float:
    """A copy on the device: it reads and writes as many bytes as multiplying the gradients in place."""
    source = torch.randn(nbytes // 4, device=DEVICE)
    target = torch.empty_like(source)
    return times({"copy": lambda: target.copy_(source)})["copy"]


def falling(start: float) -> Callable[[], float]:
    """Thresholds that fall a little with every call, so that every call has to clip."""
    state = [start]

    def following() -> float:
        state[0] *= 0.999
        return state[0]

    return following


def bench_clip(name: str) -> dict[str, Any]:
    shapes, dtype = SIZES[name]
    mine, theirs = parameters_with_grad(shapes, dtype), parameters_with_grad(shapes, dtype)
    norm = float(torch.stack([p.grad.float().norm() for p in mine]).norm())  # type: ignore[union-attr]
    nbytes = sum(p.grad.nbytes for p in mine)  # type: ignore[union-attr]
    read, read_shape = fastest_read(nbytes)
    mine_falls, their_falls = falling(norm), falling(norm)
    idle = {
        "torch": lambda: torch_clip(theirs, 1e9, foreach=True),
        "fallline": lambda: fallline.clip_grad_norm_(mine, 1e9),
        "plain read": read,
    }
    busy = {
        "torch": lambda: torch_clip(theirs, their_falls(), foreach=True),
        "fallline": lambda: fallline.clip_grad_norm_(mine, mine_falls()),
    }
    copy = copy_milliseconds(nbytes)
    not_clipping = times(idle)
    host = {n: host_microseconds(fn) for n, fn in idle.items()}
    clipping = times(busy)
    row = {
        "size": name,
        "tensors": len(shapes),
        "bytes": nbytes,
        "not clipping": not_clipping,
        "clipping": clipping,
        "host us": host,
        "read kernel": read_shape,
        "not clipping / torch": not_clipping["fallline"] / not_clipping["torch"],
        "not clipping / plain read": not_clipping["fallline"] / not_clipping["plain read"],
        "clipping / torch": clipping["fallline"] / clipping["torch"],
        "clipping floor": not_clipping["plain read"] + copy,
    }
    row["TB/s not clipping"] = nbytes / not_clipping["fallline"] / 1e9
    return row


def bench_unscale(name: str, with_step: bool) -> dict[str, Any]:
    """GradScaler.unscale_ + clip, against the engine's: statistics + one scalar, written or left to the fused optimizer."""
    shapes, dtype = SIZES[name]
    mine, theirs = (
        parameters_with_grad(shapes, dtype, with_step),
        parameters_with_grad(shapes, dtype, with_step),
    )
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0)
    their_optimizer = torch.optim.AdamW(theirs, lr=1e-4, fused=True)
    my_optimizer = torch.optim.AdamW(mine, lr=1e-4, fused=True)
    scaler.scale(torch.ones((), device=DEVICE))
    factor = torch.full((), 0.9999, device=DEVICE)
    groups = (0,) * len(mine)

    def unscale_and_clip() -> None:
        scaler._per_optimizer_states.clear()  # as update() does; the scale stays 1, so that gradients keep their size
        scaler.unscale_(their_optimizer)
        torch_clip(theirs, 1e9, foreach=True)

    def measured_only() -> Any:
        grads = [p.grad for p in mine]
        return measure(grads, groups, factor, 1e9)  # type: ignore[arg-type]

    def measured_and_written() -> None:
        grads = [p.grad for p in mine]
        measure(grads, groups, factor, 1e9).scale(grads, groups)  # type: ignore[arg-type]

    def their_step() -> None:
        unscale_and_clip()
        their_optimizer.step()

    def my_step() -> None:
        measured = measured_only()
        my_optimizer.grad_scale, my_optimizer.found_inf = measured.inverse, measured.found_inf  # type: ignore[attr-defined]
        my_optimizer.step()
        del my_optimizer.grad_scale, my_optimizer.found_inf  # type: ignore[attr-defined]

    if with_step:
        result = times({"torch": their_step, "fallline": my_step}, rounds=4, calls=8)
        return {
            "size": name,
            "ms": result,
            "fallline / torch": result["fallline"] / result["torch"],
        }
    result = times(
        {"torch": unscale_and_clip, "fused": measured_only, "written": measured_and_written}
    )
    return {
        "size": name,
        "ms": result,
        "left to the fused optimizer / torch": result["fused"] / result["torch"],
        "written / torch": result["written"] / result["torch"],
    }


def sweep() -> None:
    """First the reading kernel's shape, then the writing one's with the best of the first."""
    from fallline.engine import tables

    for name in ("GPT-2 124M fp32", "GPT 1.3B fp32", "GPT 1.3B bf16"):
        shapes, dtype = SIZES[name]
        parameters = parameters_with_grad(shapes, dtype)
        read, shape = fastest_read(sum(p.grad.nbytes for p in parameters))  # type: ignore[union-attr]
        floor = times({"read": read}, rounds=3)["read"]
        print(f"{name}: plain read {floor:.4f} ms ({shape})")

        def fresh(**values: int) -> None:
            for key, value in values.items():
                setattr(tables, key, value)
            tables._tables.clear()
            tables._known.clear()

        best: dict[str, float] = {}
        for chunk, tile, warps in SWEEP:
            fresh(_CHUNK=chunk, _TILE=tile, _WARPS=warps)
            idle = times({"idle": lambda p=parameters: fallline.clip_grad_norm_(p, 1e9)}, 3, 10)[
                "idle"
            ]  # type: ignore[misc]
            best[f"{chunk} {tile} {warps}"] = idle
            print(
                f"  chunk {chunk} tile {tile} warps {warps}: not clipping {idle:.4f} ({idle / floor:.2f}x read)",
                flush=True,
            )
        chunk, tile, warps = map(int, min(best, key=lambda key: best[key]).split())
        fresh(_CHUNK=chunk, _TILE=tile, _WARPS=warps)
        falls = falling(float(fallline.clip_grad_norm_(parameters, math.inf)))
        for tile, warps in SCALE_SWEEP:
            fresh(_SCALE_TILE=tile, _SCALE_WARPS=warps)
            measured = times(
                {
                    "idle": lambda p=parameters: fallline.clip_grad_norm_(p, 1e9),  # type: ignore[misc]
                    "clip": lambda p=parameters, f=falls: fallline.clip_grad_norm_(p, f()),  # type: ignore[misc]
                },
                3,
                8,
            )
            print(
                f"  scale tile {tile} warps {warps}: not clipping {measured['idle']:.4f}, clipping {measured['clip']:.4f}",
                flush=True,
            )
        del parameters, read
        torch.cuda.empty_cache()


def table() -> dict[str, Any]:
    import triton

    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": date.today().isoformat(),
        "clip": [],
        "unscale": [],
        "step": [],
    }
    for name in SIZES:
        result["clip"].append(bench_clip(name))
        torch.cuda.empty_cache()
    for name in ("GPT-2 124M fp32", "GPT 1.3B fp32"):
        result["unscale"].append(bench_unscale(name, with_step=False))
        torch.cuda.empty_cache()
        result["step"].append(bench_unscale(name, with_step=True))
        torch.cuda.empty_cache()
    return result


def section(result: dict[str, Any]) -> str:
    """The table, with the bars, as it is in RESULTS.md."""
    lines = [
        f"`PYTHONPATH=src python benchmarks/engine_gpu.py`, {result['date']}, {result['device']}, torch {result['torch']}, triton {result['triton']}; "
        "median milliseconds, variants in turns. fallline's read gathers every statistic of every gradient (adding them up tensor by tensor is one more small "
        "launch, when they are asked for). All checks passed."
        if not result["failed"]
        else f"CHECKS FAILED: {result['failed']}",
        "",
        "| gradients | torch | fallline | plain read | of torch (bar 0.30) | of the read (bar 1.35) |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["clip"]:
        a = row["not clipping"]
        small = row["bytes"] < 60e6  # fits in the cache; its bar is 0.25 of torch
        lines.append(
            f"| {row['size']}, {row['tensors']} tensors, not clipping | {a['torch']:.3f} | {a['fallline']:.3f} | {a['plain read']:.3f} | "
            f"**{row['not clipping / torch']:.2f}**{' (bar 0.25)' if small else ''} | {'-' if small else format(row['not clipping / plain read'], '.2f')} |"
        )
    lines += [
        "",
        "| gradients | torch | fallline | one read and one copy | of torch (bar 0.75) |",
        "|---|---|---|---|---|",
    ]
    for row in result["clip"]:
        b = row["clipping"]
        lines.append(
            f"| {row['size']}, clipping | {b['torch']:.3f} | {b['fallline']:.3f} | {row['clipping floor']:.3f} | **{row['clipping / torch']:.2f}** |"
        )
    lines += [
        "",
        "To clip, gradients must be read once for the norm and then read and written once: no program can be faster than a plain read and a copy of",
        "those bytes, the fourth column. Where that floor is more than 0.75 of torch's time, the bar cannot be met on this machine.",
    ]
    lines += [
        "",
        "| `unscale_` + clip | torch | fallline, left to the fused optimizer | of torch (bar 0.35) | fallline, gradients written | of torch |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["unscale"]:
        ms = row["ms"]
        lines.append(
            f"| {row['size']} | {ms['torch']:.3f} | {ms['fused']:.3f} | **{row['left to the fused optimizer / torch']:.2f}** | "
            f"{ms['written']:.3f} | {row['written / torch']:.2f} |"
        )
    lines += [
        "",
        "Written gradients have the floor of the table above, one read and one copy, which is already the bar or more of this column's torch;",
        "leaving the multiply to the fused optimizer is the way under it.",
    ]
    lines += [
        "",
        "| `unscale_` + clip + fused AdamW step | torch | fallline | of torch |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['size']} | {row['ms']['torch']:.3f} | {row['ms']['fallline']:.3f} | {row['fallline / torch']:.2f} |"
        for row in result["step"]
    ]
    hosts = "; ".join(
        f"{row['size']}: torch {row['host us']['torch']:.0f}, fallline {row['host us']['fallline']:.0f}"
        for row in result["clip"]
    )
    lines += ["", f"Host time of one call, microseconds: {hosts}."]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checks", action="store_true", help="only the checks")
    parser.add_argument(
        "--sweep", action="store_true", help="try chunk, tile and warps against each other"
    )
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument(
        "--write",
        metavar="JSON",
        help="put the numbers of such a file into RESULTS.md, and measure nothing",
    )
    options = parser.parse_args()
    if options.write:
        from results import write_section

        with open(options.write, encoding="utf-8") as file:
            write_section("engine on a GPU", section(json.load(file)))
        return 0
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to check or to measure")
        return 0
    failed: list[str] = []
    for check in CHECKS:
        try:
            check()
            torch.cuda.synchronize()
            print(f"ok    {check.__name__}", flush=True)
        except Exception as error:
            failed.append(check.__name__)
            print(f"FAIL  {check.__name__}: {type(error).__name__}: {error}", flush=True)
    if options.checks:
        return int(bool(failed))
    if options.sweep:
        sweep()
    result = table()
    result["failed"] = failed
    print(section(result))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
