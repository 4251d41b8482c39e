"""One rank of `test_deepspeed`: the engine under ZeRO 0 to 3, in several precisions, bare and watched, and loops with a fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import nn

import fallline

MICRO, WINDOW = 24, 2
PRECISIONS = (("bf16", 0, False), ("bf16", 2, True), ("fp16", 1, False), ("fp16", 2, True), ("", 2, True))  # fmt: skip


DTYPES = {"": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def engine_of(stage: int, precision: str, offload: bool) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": WINDOW,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage, "sub_group_size": 20},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    if precision:
        config[precision] = {"enabled": True}
    if precision == "fp16":
        config["fp16"] |= {"initial_scale_power": 24, "hysteresis": 1}  # overflows at first
    if offload:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if precision else None
    return deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config
    )[0]


def train(
    stage: int, fault: str, folder: Path | None, precision: str = "", offload: bool = False
) -> dict[str, Any]:
    watching = None if folder is None else fallline.watch(out=folder)
    engine = engine_of(stage, precision, offload)
    torch.manual_seed(1 + dist.get_rank())
    losses, norms, rates = [], [], []
    for _ in range(MICRO):
        x = torch.randn(16, 8).to(DTYPES[precision])
        loss = (engine(x) - x[:, :1]).float().pow(2).mean()
        losses.append(loss.item())
        if fault == "divided":
            loss = loss / WINDOW
        engine.backward(loss)  # FL129 FL118
        if fault == "clipped":
            nn.utils.clip_grad_norm_(engine.module.parameters(), 1.0)  # FL103
        rates.append(engine.get_lr()[0])
        if fault != "never stepped":
            engine.step()
        norms.append(engine.get_global_grad_norm())
    if watching is None:
        return {"losses": losses}
    dist.barrier()
    found = watching.stop()
    rows = watching.series.tracks[0].rows if watching.series and watching.series.tracks else []
    known = [float(n) for n in norms[WINDOW - 1 :: WINDOW] if n is not None]
    return {
        "losses": losses,
        "found": [[f.code, f.at.line] for f in found],
        "updates": len(rows),
        "recorded": [r.loss for r in rows],
        "norms": [r.clip_norm for r in rows],
        "engine": known,
        "scales": [r.scale for r in rows],
        "skipped": [r.index for r in rows if r.skipped],
        "rates": [[r.lr for r in rows], rates[WINDOW - 1 :: WINDOW]],
    }


def main(out: Path) -> None:
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    # It refuses float16 on processors without instructions for it, where it is only slow
    get_accelerator().is_fp16_supported = lambda: True
    get_accelerator().supported_dtypes = lambda: list(DTYPES.values())
    result: dict[str, Any] = {}
    for stage in range(4):
        bare = train(stage, "", None)
        result[f"{stage}"] = train(stage, "", out / f"zero{stage}") | {"bare": bare["losses"]}
    for precision, stage, offload in PRECISIONS:
        how = (stage, "")
        bare = train(*how, None, precision, offload)
        name = f"{precision or 'fp32'} {stage}{' offload' if offload else ''}"
        folder = out / name.replace(" ", "-")
        result[name] = train(*how, folder, precision, offload) | {"bare": bare["losses"]}
    for fault in ("divided", "clipped", "never stepped"):
        result[fault] = train(1, fault, out / fault.replace(" ", "-"))
    if dist.get_rank() == 0:
        (out / "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
