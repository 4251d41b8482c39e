"""A process that imports torch once and then forks for every way: `python -m fallline.instruments.equal.mother [-m] SCRIPT ARGS`.

It gets a line of JSON for every run and answers with one. It computes nothing itself, so no thread of torch's and no CUDA context is
there to be forked.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from fallline.instruments.equal.child import forked, run_way
from fallline.instruments.equal.way import Way
from fallline.instruments.script import Script

__all__ = ["run_forked"]

_HEAVY = ("transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed", "torchvision", "trl", "peft", "datasets")  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("target")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    script = Script(args.target, tuple(args.arguments), args.module)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the script prints goes to the error stream
    import_ahead(script)
    for line in sys.stdin:
        order = json.loads(line)
        statuses = run_forked(Way.of(order["way"]), script, order["out"], order["output"])
        answers.write(json.dumps({"statuses": statuses}) + "\n")
        answers.flush()
    return 0


def import_ahead(script: Script) -> None:
    """torch, and the frameworks that the script imports; not those, where it sets something in the environment first."""
    import_torch()
    if script.module:
        return
    try:
        with open(script.path, encoding="utf-8") as file:
            text = file.read()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return
    if "environ" in text:
        return
    for name in _imported(tree):
        if name in _HEAVY:
            with contextlib.suppress(Exception):  # the script will say so itself
                importlib.import_module(name)


def import_torch() -> None:
    """With what making an optimizer imports: it takes longer than a small update."""
    importlib.import_module("torch")
    with contextlib.suppress(Exception):
        importlib.import_module("torch._dynamo")


def _imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
    return found


def run_forked(
    way: Way, target: Script | Callable[[], object], out: str, output: str | None
) -> list[int]:
    """One process for every rank of this way; their exit statuses. Rank r leaves its record in `out`.r."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(output, "wb")) if output else None
        port = _free_port() if way.launched else 0
        numbers = [
            forked(lambda r=rank: _ranked(way, target, f"{out}.{r}", r, port), file)  # type: ignore[misc]
            for rank in range(way.ranks)
        ]
        return [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]


def _ranked(way: Way, target: Any, out: str, rank: int, port: int) -> int:
    if way.launched:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(way.ranks), LOCAL_WORLD_SIZE=str(way.ranks),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
    return run_way(way, target, out)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
