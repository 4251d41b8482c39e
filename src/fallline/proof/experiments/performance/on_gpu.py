"""What training calls cost on a real GPU: which wait for it, clipping, checkpointing. Ratios, not times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._gpu import milliseconds, peak_bytes


@experiment(
    "what-waits-for-the-gpu",
    claim="Clipping and the optimizer's step do not wait for the GPU; error_if_nonfinite, .item() and scaler.step do.",
    needs="cuda",
)
def what_waits_for_the_gpu() -> Measured:
    model = nn.Linear(64, 64).cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-6), GradScaler("cuda")
    x = torch.randn(8, 64, device="cuda")
    scaler.scale(model(x).sum()).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # what only the first call does is done
    loss = model(x).sum().detach()
    calls: dict[str, Callable[[], object]] = {
        "clip_grad_norm_": lambda: clip_grad_norm_(model.parameters(), 1.0),
        "clip_grad_norm_(error_if_nonfinite=True)": lambda: clip_grad_norm_(
            model.parameters(), 1.0, error_if_nonfinite=True
        ),
        "optimizer.step": optimizer.step,
        "optimizer.zero_grad(set_to_none=False)": lambda: optimizer.zero_grad(set_to_none=False),
        "scaler.unscale_": lambda: scaler.unscale_(optimizer),
        "scaler.step": lambda: scaler.step(optimizer),
        "scaler.update": scaler.update,
        "loss.item()": loss.item,
        "if loss > 0": lambda: bool(loss > 0),
        "print(loss)": lambda: str(loss),
        "loss.detach()": loss.detach,
    }
    waits = {name: _waits(call) for name, call in calls.items()}
    return Measured(
        sides={
            "waits for the GPU": dict(waits),
        },
        conclusion=f"waiting for the GPU: {', '.join(n for n, w in waits.items() if w)}; not: {', '.join(n for n, w in waits.items() if not w)}",
        holds={
            "clipping does not wait": not waits["clip_grad_norm_"],
            "error_if_nonfinite does": waits["clip_grad_norm_(error_if_nonfinite=True)"],
            "the optimizer's step does not": not waits["optimizer.step"],
            "scaler.step does": waits["scaler.step"],
            "loss.item() does": waits["loss.item()"],
        },
    )


def _waits(call: Callable[[], object]) -> bool:
    """Whether a call waits for the device; torch raises then."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


@experiment(
    "clip-cost-on-the-gpu",
    claim="On a GPU, too, clipping's share of a step falls with the tokens: no one percentage is right.",
    taught="Clipping costs less than one percent of a step.",
    needs="cuda",
)
def clip_cost_on_the_gpu() -> Measured:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(16))).cuda()
    counts = (128, 1024, 8192, 32768)
    shares: dict[int, float] = {}
    for tokens in counts:
        x = torch.randn(tokens, 2048, device="cuda")

        def step(x: torch.Tensor = x) -> None:
            model.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(x).float().pow(2).mean()
            loss.backward()

        alone = milliseconds(step)
        clip = milliseconds(lambda: clip_grad_norm_(model.parameters(), 1.0))
        shares[tokens] = 100 * clip / (alone + clip)
    return Measured(
        sides={
            f"{tokens} tokens": {"share of clipping, percent": share}
            for tokens, share in shares.items()
        },
        conclusion="share of clipping in a step of 67 million parameters: "
        + ", ".join(f"{share:.1f}% at {tokens} tokens" for tokens, share in shares.items()),
        holds={
            "the share falls with the tokens": shares[counts[0]] > 3 * shares[counts[-1]],
            "at the fewest it is over one percent": shares[counts[0]] > 1,
        },
        curves={"share of clipping, percent": list(shares.values())},
        axes=("tokens per step", "percent"),
        positions=counts,
    )


@experiment(
    "checkpointing-on-the-gpu",
    claim="On a GPU checkpointing large layers takes a quarter to a half more time for several times less memory; with little work per layer, launching it again costs more.",
    needs="cuda",
)
def checkpointing_on_the_gpu() -> Measured:
    found = {f"{tokens:,} tokens": _checkpointed(tokens) for tokens in (256, 32768)}
    (small, _), (large, saved) = found.values()
    return Measured(
        sides={
            name: {"time of a step, in plain ones": longer, "memory, of what plain needs": memory}
            for name, (longer, memory) in found.items()
        },
        conclusion=f"8 transformer layers, checkpointed: a step of 32,768 tokens takes {100 * (large - 1):.0f}% longer and {100 * saved:.0f}% of the memory, one of 256 tokens takes {100 * (small - 1):.0f}% longer",
        holds={
            "large layers: 10 to 60 percent longer": 1.1 < large < 1.6,
            "at most half of the memory": saved < 0.5,
            "small ones lose more": small > large,
        },
    )


def _checkpointed(tokens: int) -> tuple[float, float]:
    """The time of a checkpointed step and the memory it needs, both as shares of a plain one's."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(
        nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(8)
    ).to("cuda", torch.bfloat16)
    x = torch.randn(tokens // 256, 256, 1024, device="cuda", dtype=torch.bfloat16)

    def step(checkpointed: bool) -> None:
        out = x
        for block in blocks:
            out = checkpoint(block, out, use_reentrant=False) if checkpointed else block(out)
        out.float().pow(2).mean().backward()

    step(False)  # from here on the gradients have their room
    time, memory = (
        [measure(partial(step, checkpointed)) for checkpointed in (False, True)]
        for measure in (milliseconds, peak_bytes)
    )
    return time[1] / time[0], memory[1] / memory[0]
