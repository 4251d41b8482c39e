"""`fallline measure plan`: does it fit? By arithmetic, before anything is run."""

from __future__ import annotations

import argparse

__all__ = ["HELP", "NEEDS_TORCH", "add_arguments"]

NEEDS_TORCH = False

HELP = """\
does it fit: an estimate of the memory that training a model of this size takes

  fallline measure plan 7B --card 24
  fallline measure plan 7B --card 24 --train lora --checkpointing --tokens 4096
  fallline measure plan config.json --gpus 8 --shard zero3

Weights, gradients and optimizer state follow from the number of parameters; activations are estimated for a transformer with
flash attention in 16 bits. Nothing is run. `fallline measure memory train.py` measures the real thing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="SIZE", help="7B, 350M, a number, or a model's config.json"
    )
    parser.add_argument("--card", type=float, metavar="GB", help="memory of one GPU")
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="number of GPUs (default: 1)"
    )
    parser.add_argument(
        "--train",
        choices=("full", "lora", "qlora"),
        default="full",
        help="what to train: all weights, LoRA or QLoRA (default: full)",
    )
    parser.add_argument(
        "--optimizer",
        choices=("adamw", "adamw8bit", "sgd", "adafactor"),
        default="adamw",
        help="the optimizer (default: adamw)",
    )
    parser.add_argument(
        "--shard",
        choices=("none", "zero1", "zero2", "zero3"),
        default="none",
        help="how to shard over the GPUs; zero3 is FSDP (default: none)",
    )
    parser.add_argument("--checkpointing", action="store_true", help="use activation checkpointing")
    parser.add_argument(
        "--tokens",
        type=int,
        default=2048,
        metavar="N",
        help="tokens in one micro-batch (default: 2048)",
    )
    parser.add_argument(
        "--output-format", choices=("text", "json"), default="text", help="text (default) or json"
    )
