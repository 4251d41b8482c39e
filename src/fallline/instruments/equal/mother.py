"""A process that imports torch once and then forks for every way: `python -m fallline.instruments.equal.mother [-m] SCRIPT ARGS`.

It gets a line of JSON for every run and answers with one. It computes nothing itself, so no thread of torch's and no CUDA context is
there to be forked. A module that asks for the device when it is imported spoils that: then this process starts again and imports
nothing but torch (`--bare`).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fallline.instruments.equal.child import forked, run_way
from fallline.instruments.equal.way import Way
from fallline.instruments.script import Script

__all__ = ["is_spoilt", "run_forked"]

_PATIENCE = 300.0  # seconds for all ranks to make one update
# What takes long to import and starts no thread when it is imported, which a fork would lose
HEAVY = (
    "transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed", "torchvision", "trl", "peft", "datasets", "evaluate",
    "diffusers", "timm", "torchmetrics", "torch_geometric", "sklearn", "scipy", "pandas", "matplotlib", "gymnasium", "torch",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module", action="store_true")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("target")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    script = Script(args.target, tuple(args.arguments), args.module)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the script prints goes to the error stream

    def anew_if_spoilt() -> None:
        if not args.bare and is_spoilt():
            os.dup2(answers.fileno(), 1)
            os.execv(sys.executable, [sys.executable, "-m", __spec__.name, "--bare", *arguments])

    with _asking_the_driver():
        import_torch() if args.bare else import_ahead(script)
    anew_if_spoilt()
    for line in sys.stdin:
        order = json.loads(line)
        statuses = run_forked(Way.of(order["way"]), script, order["out"], order["output"])
        if not args.bare:
            with _asking_the_driver():
                _import_what_it_imported(order["out"], script)
        answers.write(json.dumps({"statuses": statuses}) + "\n")
        answers.flush()
        anew_if_spoilt()
    return 0


@contextlib.contextmanager
def _asking_the_driver() -> Iterator[None]:
    """Many packages ask whether there is a GPU when they are imported. The driver can say so without CUDA, which a fork would lose."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def is_spoilt() -> bool:
    """Whether a process that is forked from this one cannot use CUDA. Only such a process can tell."""
    import torch

    process = os.fork()
    if not process:
        os._exit(torch.cuda._is_in_bad_fork())
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != 0


def import_ahead(script: Script) -> None:
    """torch, and the frameworks that the script imports."""
    import_torch()
    _import_all(sorted(_first_imported(script)))


def _first_imported(script: Script) -> set[str]:
    """What the script imports before it sets something in the environment, which some packages read when they are imported."""
    tree = _syntax(script)
    if not _uses_environment(tree):
        return _imported(tree) & _installed(script)
    found: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            continue  # runs later
        if _uses_environment(statement):
            break
        found |= _imported(statement)
    return found & _installed(script)


def _installed(script: Script) -> set[str]:
    """The packages that may be imported ahead: not those whose name is that of a module of the user's own."""
    folders = {os.getcwd(), os.path.dirname(os.path.abspath(script.path))}
    mine = {name.removesuffix(".py") for folder in folders for name in os.listdir(folder)}
    return set(HEAVY) - mine


def _syntax(script: Script) -> ast.Module:
    with contextlib.suppress(OSError, ValueError, SyntaxError), open(script.path, encoding="utf-8") as file:  # fmt: skip
        return ast.parse(file.read())
    return ast.parse(
        "environ"
    )  # a module whose file is not known yet, or not Python: nothing ahead


def _uses_environment(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="environ" | "putenv") | ast.Name(id="environ" | "putenv"):
                return True
    return False


def _import_all(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(Exception):  # the script will say so itself
            importlib.import_module(name)


def _import_what_it_imported(out: str, script: Script) -> None:
    """What these packages import when they are used, the next run finds there. Where the script sets something in the environment,
    only of packages that are there already."""
    path = f"{out}.modules"
    if not os.path.exists(path):
        return
    ours = _installed(script)
    if _uses_environment(_syntax(script)):
        ours &= set(sys.modules)
    with open(path, encoding="utf-8") as file:
        _import_all(name for name in json.load(file) if name.partition(".")[0] in ours)


def import_torch() -> None:
    """With what making an optimizer imports: it takes longer than a small update."""
    importlib.import_module("torch")
    with contextlib.suppress(Exception):
        importlib.import_module("torch._dynamo")


def _imported(tree: ast.AST) -> set[str]:
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
        return _waited(numbers, _PATIENCE if way.ranks > 1 else None)


def _waited(numbers: list[int], seconds: float | None) -> list[int]:
    """Their exit statuses. Ranks that wait for each other for ever are ended."""
    if seconds is None:
        return [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]
    end, found = time.monotonic() + seconds, dict.fromkeys(numbers, 0)
    left = list(numbers)
    while left:
        for number in list(left):
            done, status = os.waitpid(number, os.WNOHANG)
            if done:
                found[number] = os.waitstatus_to_exitcode(status)
                left.remove(number)
            elif time.monotonic() > end:
                os.kill(number, signal.SIGKILL)
        time.sleep(0.02)
    return [found[number] for number in numbers]


def _ranked(way: Way, target: Any, out: str, rank: int, port: int) -> int:
    if way.launched:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(way.ranks), LOCAL_WORLD_SIZE=str(way.ranks),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
        if not _accelerated():
            # what `accelerate launch --cpu` sets: without it Accelerate trains every rank alone where there is no GPU
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    before = set(sys.modules)
    status = run_way(way, target, out)
    if not rank:
        new = [
            name for name in sys.modules if name not in before and name.partition(".")[0] in HEAVY
        ]
        with open(f"{out.removesuffix('.0')}.modules", "w", encoding="utf-8") as file:
            json.dump(new, file)
    return status


def _accelerated() -> bool:
    import torch

    return torch.cuda.is_available() or (hasattr(torch, "xpu") and torch.xpu.is_available())


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
