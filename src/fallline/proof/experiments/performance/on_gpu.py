"""What training calls cost on a real GPU: which wait for it, clipping, checkpointing. Ratios, not times."""

from __future__ import annotations

from collections.abc import Callable

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
        "clip_grad_norm_, error_if_nonfinite": lambda: clip_grad_norm_(
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
            "error_if_nonfinite does": waits["clip_grad_norm_, error_if_nonfinite"],
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
    claim="On a GPU checkpointing trades a sixth to a half more time for several times less memory.",
    needs="cuda",
)
def checkpointing_on_the_gpu() -> Measured:
    torch.manual_seed(0)
    blocks = nn.ModuleList(
        nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(8)
    ).cuda()
    x = torch.randn(16, 512, 1024, device="cuda")

    def step(checkpointed: bool) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            out = x
            for block in blocks:
                out = checkpoint(block, out, use_reentrant=False) if checkpointed else block(out)
            loss = out.float().pow(2).mean()
        loss.backward()

    step(False)  # from here on the gradients have their room
    time = {c: milliseconds(lambda c=c: step(c), repeats=8) for c in (False, True)}  # type: ignore[misc]
    memory = {c: peak_bytes(lambda c=c: step(c)) for c in (False, True)}  # type: ignore[misc]
    longer, less = time[True] / time[False], memory[False] / memory[True]
    return Measured(
        sides={
            "plain": {"peak memory, MiB": memory[False] / 2**20, "time of a step": 1.0},
            "checkpointed": {"peak memory, MiB": memory[True] / 2**20, "time of a step": longer},
        },
        conclusion=f"8 transformer layers, checkpointed: a step takes {100 * (longer - 1):.0f}% longer and {less:.1f} times less memory",
        holds={
            "between 5 and 60 percent longer": 1.05 < longer < 1.6,
            "at least twice less memory": less > 2,
        },
    )
