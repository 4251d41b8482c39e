"""A loop as torchtitan's trainer writes it (FSDP2 x TP, global token count, gradients summed, clipping), and the same with a Stepper.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/engine_titan.py

Four ranks (gloo, on this machine), ragged labels, 4 micro-batches for one update. Both loops print their losses; the last line is the row for RESULTS.md.
Ours from beginning to end: it follows `Trainer.train_step` of pytorch/torchtitan in what it does, not in its words.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "engine"))

import torch
import torch.distributed as dist
from launch import ended, forked
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fallline

RANKS, UPDATES, ACCUMULATE, WORDS, IGNORED = 4, 20, 4, 48, -100


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def build(mesh: DeviceMesh, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model: Any = Model().to(dtype)
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)  # the loss is divided by the tokens of all ranks
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply and sum at once
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)


def batches(reader: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Ragged: of each row, only some labels count."""
    generator = torch.Generator().manual_seed(reader)
    for _ in range(UPDATES * ACCUMULATE):
        tokens = torch.randint(WORDS, (4, 12), generator=generator)
        labels = (tokens * 7 + 3) % WORDS
        lengths = torch.randint(1, 13, (4, 1), generator=generator)
        yield tokens, labels.masked_fill(torch.arange(12) >= lengths, IGNORED)


def loss_sum(model: Any, tokens: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        model(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def total(value: Tensor, group: Any) -> Tensor:
    value = value.detach().clone()
    dist.all_reduce(value, group=group)
    return value


def original(
    model: Any, optimizer: Any, scheduler: Any, data: Iterator[Any], group: Any
) -> list[float]:
    losses = []
    for _ in range(UPDATES):
        optimizer.zero_grad()
        micro_batches = [next(data) for _ in range(ACCUMULATE)]
        tokens = total(sum((labels != IGNORED).sum() for _, labels in micro_batches), group)
        whole = torch.zeros(())
        for inputs, labels in micro_batches:
            loss = loss_sum(model, inputs, labels) / tokens
            loss.backward()
            whole = whole + loss.detach()
        # Not get_total_norm: it cannot add up parameters of different meshes
        gradients = [p.grad for p in model.parameters()]
        norm = torch.stack([g.norm().full_tensor() for g in gradients]).norm()
        if not torch.isfinite(norm):
            raise RuntimeError("the gradient is not finite")
        coefficient = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.to_local().mul_(coefficient)
        optimizer.step()
        scheduler.step()
        losses.append(float(total(whole, group)))
    return losses


def with_stepper(
    model: Any, optimizer: Any, scheduler: Any, data: Iterator[Any], group: Any
) -> list[float]:
    losses = []
    stepper = fallline.Stepper(
        model,
        optimizer,
        accumulate=ACCUMULATE,
        clip_norm=1.0,
        scheduler=scheduler,
        nonfinite="raise",
    )
    for _ in range(UPDATES):
        whole = torch.zeros(2)
        for inputs, labels in (next(data) for _ in range(ACCUMULATE)):
            with stepper.micro_batch() as micro:
                count = (labels != IGNORED).sum()
                loss = loss_sum(model, inputs, labels)
                micro.backward(loss, weight=count)
                whole = whole + torch.stack([loss.detach(), count])
        summed, tokens = total(whole, group)
        losses.append(float(summed / tokens))
    return losses


def run(names: list[str], rank: int, world: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    found = {}
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        for loop in (original, with_stepper):
            data = batches(mesh["dp"].get_local_rank())
            model, *rest = build(mesh, dtype)
            losses = loop(model, *rest, data, mesh["dp"].get_group())
            whole = [p.full_tensor() for p in model.parameters()]
            found[dtype, loop] = losses, whole
    if rank == 0:
        print(_row(found))
    dist.barrier()


def _row(found: dict[Any, Any]) -> str:
    (a, _), (b, _) = found[torch.float32, original], found[torch.float32, with_stepper]
    for x, y in zip(a, b, strict=True):
        print(f"{x:.5f} {y:.5f}")
    same = sum(f"{x:.5f}" == f"{y:.5f}" for x, y in zip(a, b, strict=True))
    (_, p), (_, q) = found[torch.float64, original], found[torch.float64, with_stepper]
    far = max(float((x - y).detach().abs().max()) for x, y in zip(p, q, strict=True))
    gone, come = _lines(original), _lines(with_stepper)
    kept = sum(line in come for line in gone)
    return (
        f"| torchtitan-like, FSDP2 × TP, 4 ranks | {len(gone) - kept} | {len(come) - kept} | {same} of {len(a)} | {far:.0e} apart in float64 after {UPDATES} updates | "
        "the sum of token counts before the first forward pass, the division, zero_grad, the norm over both meshes, clip, step and scheduler go; gradients are reduced once for an update, not once for a micro-batch |"
    )


def _lines(function: Any) -> list[str]:
    return [line.strip() for line in inspect.getsource(function).splitlines()[4:] if line.strip()]


def main() -> int:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        here: Any = sys.modules[__name__]
        ok = ended([forked(here, [], rank, RANKS, Path(folder)) for rank in range(RANKS)])
        said = [Path(folder, f"rank-{rank}.log").read_text() for rank in range(RANKS)]
    print(said[0] if ok else "\n".join(said))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
