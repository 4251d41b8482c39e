"""What `fallline measure plan` does."""

from __future__ import annotations

import argparse
import json

from fallline.errors import UsageError
from fallline.instruments.plan import GB, model_of, plan

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    if args.gpus < 1 or args.tokens < 1:
        raise UsageError("--gpus and --tokens count from 1")
    model = model_of(args.model)
    planned = plan(
        model,
        tokens=args.tokens,
        optimizer=args.optimizer,
        train=args.train,
        gpus=args.gpus,
        shard=args.shard,
        checkpointing=args.checkpointing,
    )
    numbers = planned.as_dict()
    if args.output_format == "json":
        fits = None if args.card is None else planned.total <= args.card * GB
        print(json.dumps({**numbers, "card": args.card, "fits": fits}, indent=2))
        return 0
    each = " on each GPU" if args.gpus > 1 else ""
    print(
        f"{model.parameters / 1e9:.3g} billion parameters, {args.train} training with {args.optimizer}{each}:"
    )
    for name, value in numbers.items():
        print(f"  {name.replace('_', ' '):16} {value:8.1f} GB")
    if planned.step > planned.activations:
        print(
            "The peak is in the optimizer's step, after the activations are freed; `fused=True` saves what the step needs beside its state."
        )
    if args.card is not None:
        fits = planned.total <= args.card * GB
        print(
            f"It {'fits' if fits else 'does not fit'} into {args.card:g} GB (the total counts 1 GB for CUDA itself)."
        )
    return 0
