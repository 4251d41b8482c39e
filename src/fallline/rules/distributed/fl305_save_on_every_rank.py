"""FL305: a checkpoint is written by all ranks to one path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.makers import method_of
from fallline.flow.ranks import (
    called_functions,
    is_distributed,
    mentions_rank,
    only_on_some_ranks,
    owned_by_framework,
    runs_on_every_rank,
)
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below

_SAVES = re.compile(r"save|check_?point|ckpt|snapshot|dump")


class SaveOnEveryRank(Rule):
    code = "FL305"
    name = "save-on-every-rank"
    severity = Severity.WARNING
    what = """\
`torch.save` runs on every rank and writes to one path.

A rank in the path, a guard of any kind, and collective savers (`torch.distributed.checkpoint`, FSDP, Accelerate, Fabric) are fine."""
    why = """\
All ranks write the same file at the same time. The parameters are the same, but the file can end up mixed or cut short, which nobody notices until it is loaded."""
    instead = """\
Let one rank write, and the others wait where they need the file.

```python
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), path)
dist.barrier()
```"""
    tokens = (b"DistributedDataParallel", b"init_process_group", b"rank0_only", b"set_epoch")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        yield from self._empty_elsewhere(module)
        if not is_distributed(module) or owned_by_framework(module):
            return
        for save in module.calls("torch.save"):
            if not _own_path(module, save) and runs_on_every_rank(module, save):
                yield self._found(module, save)
        savers = {id(call): (call, _saves_of(module, call)) for call in module.all(ast.Call)}
        guarded = {
            id(save)
            for call, found in savers.values()
            for _, save in found
            if only_on_some_ranks(module, call)
        }
        for call, found in savers.values():
            given = [*call.args, *(k.value for k in call.keywords)] if found else []
            if not found or any(mentions_rank(module, g) for g in given):
                continue
            if not runs_on_every_rank(module, call):
                continue
            home, save = found[0]
            if only_on_some_ranks(home, save):
                # elsewhere it is called for one rank, and told which: here it is not
                if id(save) in guarded and _asks_its_caller(home, save):
                    yield self._found(module, call)
            elif not mentions_rank(module, call):
                # a method is right or wrong where it is called
                of_object = home.class_(save) is not None
                yield self._found(module, call) if of_object else self._found(home, save)

    def _empty_elsewhere(self, module: Module) -> Iterator[Finding]:
        """A state that FSDP gathers on rank 0 alone, saved by all: the others write an empty one over it."""
        if "rank0_only" not in module.source.text:
            return
        for call in module.all(ast.Call):
            if "save" not in last_name(call) or not call.args or mentions_rank(module, call):
                continue
            if not _gathered_on_one(module, call.args[0]) or only_on_some_ranks(module, call):
                continue
            function = module.function(call)
            calls = values_of(module).calls_of(function) if function is not None else []
            inside = [
                s
                for home, f in called_functions(module, call)
                for s in home.calls("torch.save")
                if home.function(s) is f and only_on_some_ranks(home, s)
            ]
            if not inside and not any(only_on_some_ranks(module, c) for c in calls):
                yield self.finding(
                    module.location(call),
                    "Every rank writes this file, but `rank0_only=True` leaves the state empty on all ranks except rank 0, so an empty checkpoint can replace the full one. "
                    "Save on one rank only: if dist.get_rank() == 0.",
                )

    def _found(self, module: Module, save: ast.Call) -> Finding:
        return self.finding(
            module.location(save),
            "Every rank writes this file, to the same path and at the same time, so it can end up corrupted. Save on one rank only: if dist.get_rank() == 0.",
        )

    wrong = (
        """\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main(loader):
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    model = DDP(torch.nn.Linear(8, 2).to(device), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    torch.save(model.module.state_dict(), "model.pt")  # FL305
""",
        """\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, device):
        self.model = DDP(model.to(device), device_ids=[device])

    def save(self, epoch):
        torch.save(self.model.module.state_dict(), f"epoch{epoch}.pt")  # FL305

    def fit(self, epochs):
        for epoch in range(epochs):
            self.save(epoch)


def worker(device, world):
    dist.init_process_group("nccl", rank=device, world_size=world)
    Trainer(torch.nn.Linear(8, 2), device).fit(3)


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
""",
    )
    right = (
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(8, 2).cuda())
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
torch.save(torch.get_rng_state(), f"rng{dist.get_rank()}.pt")
""",
        # an early return, and a guard with a name of its own
        """\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
writes = int(os.environ["RANK"]) == 0


def save(model, path):
    if not writes:
        return
    torch.save(model.state_dict(), path)


model = DDP(torch.nn.Linear(8, 2).cuda())
save(model, "model.pt")
if writes:
    torch.save(model.module.state_dict(), "again.pt")
""",
        # a decorator, and a helper that only guarded code calls
        """\
import functools
import io

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main_process_only(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args) if dist.get_rank() == 0 else None

    return wrapped


@main_process_only
def save(model):
    torch.save(model.state_dict(), "model.pt")


def write(model):
    torch.save(model.state_dict(), "other.pt")


def main():
    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(8, 2).cuda())
    save(model)
    if is_main_process():
        write(model)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)


def is_main_process():
    return not dist.is_initialized() or dist.get_rank() == 0


main()
""",
        # one process in one arm, one rank in the other
        """\
import torch
import torch.distributed as dist


def run(model, standalone):
    if not standalone:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), "model.pt")
    else:
        torch.save(model.state_dict(), "model.pt")


run(torch.nn.Linear(8, 2), standalone=False)
""",
        # one process
        """\
import torch

model = torch.nn.Linear(8, 2)
torch.save(model.state_dict(), "model.pt")
""",
        """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(world_size):
    if world_size > 1:
        dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 2)
    if world_size > 1:
        model = DistributedDataParallel(model)
    if world_size == 1:
        torch.save(model.state_dict(), "model.pt")
""",
    )


def _saves_of(module: Module, call: ast.Call) -> list[tuple[Module, ast.Call]]:
    """What a function of another file, or a method of an object that is made here, writes to one path."""
    bodies: list[tuple[Module, ast.AST]] = [*called_functions(module, call)]
    if isinstance(call.func, ast.Attribute) and _SAVES.search(call.func.attr):
        method = method_of(module, call.func)
        bodies += [method] if method is not None else []
    return [
        (home, save)
        for home, body in bodies
        if home is not module
        for save in home.calls("torch.save")
        if home.function(save) is body and not _own_path(home, save)
    ]


def _asks_its_caller(home: Module, save: ast.Call) -> bool:
    """All that decides whether it is written are arguments of its function: `if local_rank > -1:`."""
    function = home.function(save)
    tests = [up.test for up in home.parents(save) if isinstance(up, ast.If)]
    names = {n.id for test in tests for n in below(test, ast.Name)}
    others = any(below(test, ast.Call) or below(test, ast.Attribute) for test in tests)
    given = {a.arg for a in below(function.args, ast.arg)} if function is not None else set()
    return bool(names) and names <= given and not others


def _gathered_on_one(module: Module, state: ast.expr) -> bool:
    """`model.state_dict()` under a FullStateDictConfig with `rank0_only=True`, or `full_optim_state_dict(..., rank0_only=True)`."""
    made = module.value(state)
    if not isinstance(made, ast.Call):
        return False
    around = [
        i.context_expr for up in module.parents(made) if isinstance(up, ast.With) for i in up.items
    ]
    configured = [c for c in around if isinstance(c, ast.Call)]
    configured += [
        v
        for c in configured
        for a in (*c.args, *(k.value for k in c.keywords))
        if isinstance(v := module.value(a), ast.Call)
    ]
    return any(
        module.constant(Module.argument(c, None, "rank0_only")) is True for c in (made, *configured)
    )


def _own_path(module: Module, save: ast.Call) -> bool:
    """Each rank writes somewhere else: a path with the rank in it, or memory."""
    path = module.argument(save, 1, "f")
    if path is None or module.has_star(save):
        return True
    made = module.value(path)
    name = module.resolve(made.func) if isinstance(made, ast.Call) else None
    return (
        name in {"io.BytesIO", "tempfile.TemporaryFile"}
        or "buf" in module.segment(path).lower()
        or mentions_rank(module, path)
    )
