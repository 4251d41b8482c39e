"""Copies between host and device, CUDA graphs, and the optimizer's kernels on a real GPU. Ratios and counts, not times."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._gpu import milliseconds

_LATE = 200_000_000  # clock cycles of idle work in front of a copy: about a tenth of a second


@experiment(
    "non-blocking-needs-pinned-memory",
    claim="`non_blocking=True` returns before the copy is done only from pinned memory; from pageable memory the call takes as long as the copy.",
    taught="non_blocking=True makes a copy to the GPU asynchronous.",
    needs="cuda",
)
def non_blocking_needs_pinned_memory() -> Measured:
    pageable = torch.ones(2**26)  # 256 MiB
    sources = {"pageable": pageable, "pinned": pageable.pin_memory()}
    held = {name: _held(source) for name, source in sources.items()}
    share = {name: call / whole for name, (call, whole) in held.items()}
    return Measured(
        sides={
            name: {"time until the call returns, of the whole copy": value}
            for name, value in share.items()
        },
        conclusion=f"a copy of 256 MiB with non_blocking=True holds the host for {100 * share['pageable']:.0f}% of its time from pageable memory, for {100 * share['pinned']:.1f}% from pinned memory",
        holds={
            "from pageable memory the call waits": share["pageable"] > 0.5,
            "from pinned memory it returns at once": share["pinned"] < 0.1,
        },
    )


def _held(source: torch.Tensor) -> tuple[float, float]:
    """The shortest of some copies: seconds until the call returns, and until the copy is done."""
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        source.to("cuda", non_blocking=True)
        returned = time.perf_counter()
        torch.cuda.synchronize()
        found.append((returned - begin, time.perf_counter() - begin))
    return min(found, key=lambda pair: pair[1])


@experiment(
    "device-to-host-arrives-late",
    claim="After a non-blocking copy to the host the buffer still has its old values until the stream is synchronised; a copy to the device is waited for by the kernels behind it.",
    taught="A tensor can be read as soon as .to(..., non_blocking=True) has returned.",
    needs="cuda",
)
def device_to_host_arrives_late() -> Measured:
    x = torch.zeros(1024, device="cuda")
    host = torch.full((1024,), -1.0).pin_memory()
    torch.cuda.synchronize()
    torch.cuda._sleep(_LATE)  # the GPU is busy, as it is in training
    x.fill_(3.0)
    host.copy_(x, non_blocking=True)
    early = host.sum().item() / 1024
    torch.cuda.current_stream().synchronize()
    after = host.sum().item() / 1024
    torch.cuda._sleep(_LATE)
    there = torch.full((1024,), 5.0).pin_memory().to("cuda", non_blocking=True)
    back = (there * 2).mean().item()
    return Measured(
        sides={
            "to the host": {"read at once": early, "read after synchronize()": after},
            "to the device": {"used by the next kernel": back},
        },
        conclusion=f"3 was copied to a buffer of -1: read at once it holds {early:g}, after synchronize() {after:g}; 5 copied to the device and doubled there gives {back:g}",
        holds={
            "read at once, the old values": early == -1.0,
            "read after synchronize(), the new ones": after == 3.0,
            "on the device the order is kept": back == 10.0,
        },
    )


@experiment(
    "cuda-graph-replays-addresses",
    claim="A CUDA graph reads the buffers it was captured with: new data must be copied into them; it replays many small kernels several times faster than launching them.",
    taught="Call the graphed function with a new batch, and it runs on that batch.",
    needs="cuda",
)
def cuda_graph_replays_addresses() -> Measured:
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(40) for m in (nn.Linear(64, 64), nn.GELU()))).cuda()
    static, graph, out = _captured(model)
    new = torch.randn_like(static)
    with torch.no_grad():
        want = model(new)
        old = model(static).clone()
        graph.replay()  # with a new tensor at hand, but the old buffer
        stale = bool(torch.allclose(out, old, atol=1e-6))
        static.copy_(new)
        graph.replay()
        fresh = bool(torch.allclose(out, want, atol=1e-6))
        faster = milliseconds(lambda: model(static)) / milliseconds(graph.replay)
    refused = {name: _refused(code) for name, code in _WAITING.items()}
    return Measured(
        sides={
            "a replay": {
                "reads the captured buffer": stale,
                "sees what was copied into it": fresh,
                "times faster than 80 launches": faster,
            },
            "in a capture": {name: "raises" if no else "runs" for name, no in refused.items()},
        },
        conclusion=f"a replay of 80 small layers is {faster:.1f} times faster than launching them; new data in another tensor: not seen ({stale}), copied into the buffer: seen ({fresh}); raising in a capture: {', '.join(n for n, no in refused.items() if no) or 'none'}",
        holds={
            "without a copy the old batch": stale,
            "with a copy the new one": fresh,
            "at least twice as fast": faster > 2,
            "loss.item() cannot be captured": refused["loss.item()"],
            "scaler.step cannot be captured": refused["scaler.step(optimizer)"],
        },
    )


def _captured(model: nn.Module) -> tuple[torch.Tensor, torch.cuda.CUDAGraph, torch.Tensor]:
    """The input buffer, the graph, and the output buffer, after a warm-up on a side stream as torch's manual has it."""
    static = torch.randn(32, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        out = model(static)
    return static, graph, out


_START = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
loss = model(torch.ones(2, 8, device="cuda")).sum()
scaler.scale(loss).backward()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
"""
_WAITING = {
    "loss.item()": "with torch.cuda.graph(graph):\n    loss.item()",
    "scaler.step(optimizer)": "scaler.unscale_(optimizer)\nwith torch.cuda.graph(graph):\n    scaler.step(optimizer)",
}


def _refused(code: str) -> bool:
    """Whether a capture of this raises; in a process of its own, because a broken capture leaves the device unusable."""
    ran = subprocess.run([sys.executable, "-c", _START + code], capture_output=True, text=True)
    if ran.returncode and "captur" not in ran.stderr:
        raise RuntimeError(ran.stderr[-2000:])
    return ran.returncode != 0


@experiment(
    "fused-optimizer-launches-less",
    claim="AdamW launches some kernels for every parameter in its loop form, far fewer as `foreach`, and fewest as `fused=True`; the weights are the same.",
    needs="cuda",
)
def fused_optimizer_launches_less() -> Measured:
    forms = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    ran = {name: _stepped(how) for name, how in forms.items()}
    launched = {name: kernels for name, (kernels, _) in ran.items()}
    apart = max(float((ran["loop"][1] - weights).abs().max()) for _, weights in ran.values())
    return Measured(
        sides={name: {"kernels in a step": kernels} for name, kernels in launched.items()},
        conclusion="kernels that a step of AdamW with 60 parameters launches: "
        + ", ".join(f"{kernels} ({name})" for name, kernels in launched.items())
        + f"; the weights differ by at most {apart:.0e}",
        holds={
            "foreach launches at most a fifth of the loop's": launched["foreach"] * 5
            <= launched["loop"],
            "fused no more than foreach": launched["fused"] <= launched["foreach"],
            "the same weights": apart < 1e-5,
        },
    )


def _stepped(how: dict[str, bool]) -> tuple[int, torch.Tensor]:
    """The kernels of one step, and the weights after it."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(30))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **how)  # type: ignore[arg-type]
    for _ in range(2):  # the first makes the state
        model.zero_grad()
        model(torch.ones(4, 32, device="cuda")).sum().backward()
        kernels = _kernels(optimizer.step)
    return kernels, torch.cat([p.detach().flatten() for p in model.parameters()])


def _kernels(work: Callable[[], object]) -> int:
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(
        str(event.device_type).endswith("CUDA") and "mem" not in event.name.lower()[:6]
        for event in seen.events() or ()
    )
