"""Runs blocks of training code, each in a fresh world of the names that such code takes for granted.

A process of its own, because blocks set seeds, switch algorithms and write checkpoints. Reads {name: code} as JSON and
prints {"ran": [names], "failed": {name: error}}; blocks that need names from elsewhere (`self`, FSDP) are left out.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import sys
import warnings

import torch

import fallline


def a_world(targets: torch.Tensor) -> dict[str, object]:
    """In the middle of a loop: one backward has been done, and another one can be."""
    model = torch.nn.Sequential()
    model.backbone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    model.head = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(16, 4)
    dataset = torch.utils.data.TensorDataset(inputs, targets)
    scaler = torch.amp.GradScaler("cpu")
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward(retain_graph=True)
    return {
        "torch": torch,
        "F": torch.nn.functional,
        "fallline": fallline,
        "contextlib": contextlib,
        "os": os,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
        "scaler": scaler,
        "inputs": inputs,
        "x": inputs,
        "targets": targets,
        "y": targets,
        "outputs": model(inputs),
        "logits": model(inputs),
        "similarity": model(inputs),
        "features": inputs,
        "loss": loss,
        "losses": [],
        "total": 0.0,
        "hidden": model(inputs),
        "loss_fn": torch.nn.functional.cross_entropy,
        "custom_loss": torch.nn.functional.cross_entropy,
        "dataset": dataset,
        "loader": torch.utils.data.DataLoader(dataset, batch_size=4),
        "accumulation_steps": 4,
        "k": 4,
        "i": 3,
        "step": 0,
        "epochs": 1,
        "pad": -100,
        "tokens_in_window": 16,
        "temperature": 0.1,
        "norms": [0.5, 1.0, 2.0],
        "squared": torch.rand(4),
        "mask": torch.ones(16),
        "per_token": torch.rand(16),
        "probabilities": torch.rand(4),
        "p": torch.rand(4),
        "vocabulary": 50257,
        "device": "cpu",
        "dtype": torch.bfloat16,
        "layer": torch.nn.Linear(4, 4),
        "block": model,
        "batch": inputs,
        "train_step": model,
        "classes": 3,
        "predictions": torch.rand(16, 1),
        "values": torch.rand(16),
        "state": {f"module.{key}": value for key, value in model.state_dict().items()},
    }


def runnable(code: str, world: dict[str, object]) -> bool:
    """Whether the world has every name that the code does not make itself."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
        compile(code, "<block>", "exec")
    except SyntaxError:  # `return` outside a function: the inside of somebody's method
        return False
    names = [n for n in nodes if isinstance(n, ast.Name)]
    added_to = {id(n.target) for n in nodes if isinstance(n, ast.AugAssign)}
    made = {n.id for n in names if not isinstance(n.ctx, ast.Load) and id(n) not in added_to}
    made |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    made |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    made |= {
        a.asname or a.name.partition(".")[0]
        for n in nodes
        if isinstance(n, ast.Import | ast.ImportFrom)
        for a in n.names
    }
    needed = {n.id for n in names} - made - set(dir(builtins))
    attributes = [n for n in nodes if isinstance(n, ast.Attribute)]
    # what only a launched program, or another model (FSDP has a clip_grad_norm_ of its own), can do
    launched = {"set_epoch", "distributed", "cuda"} & {n.attr for n in attributes}
    other_model = any(
        isinstance(n.value, ast.Name)
        and n.value.id == "model"
        and not hasattr(world["model"], n.attr)
        for n in attributes
    )
    return needed <= world.keys() and not launched and not other_model


def ran(code: str) -> str:
    """Empty, or why it does not run, with targets that are classes and with targets that are probabilities."""
    reason = ""
    for targets in (torch.randint(0, 3, (16,)), torch.rand(16, 3).softmax(1)):
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(False)
        torch.autograd.set_detect_anomaly(False)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                exec(compile(code, "<block>", "exec"), a_world(targets))
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {error}"
        else:
            return ""
    return reason


def main() -> None:
    warnings.simplefilter("ignore")  # of torch, that there is no CUDA here
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = "0"  # as torchrun would
    world = a_world(torch.randint(0, 3, (16,)))
    chosen = {name: code for name, code in json.load(sys.stdin).items() if runnable(code, world)}
    failed = {name: reason for name, code in chosen.items() if (reason := ran(code))}
    print(json.dumps({"ran": sorted(chosen), "failed": failed}))


if __name__ == "__main__":
    main()
