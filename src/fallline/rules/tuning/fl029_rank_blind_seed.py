"""FL029: every rank or worker draws the same random numbers for its data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, names_in, of_self
from fallline.flow.values import values_of
from fallline.location import Location
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of, walk

__all__ = ["RankBlindSeed"]

_RANK = re.compile(
    r"rank|worker|process_index|proc_id|initial_seed|base_seed|torch_seed|info", re.IGNORECASE
)
_SEEDS = frozenset(
    {"seed", "manual_seed", "default_rng", "RandomState", "seed_everything", "set_seed"}
)
_GENERATORS = frozenset({"numpy.random.default_rng", "numpy.random.RandomState", "random.Random"})
_DRAWS = frozenset(
    "random rand randn randint integers uniform normal choice choices shuffle permutation sample randrange gauss beta".split()
)
_DATASETS = re.compile(r"torch\.utils\.data\.(dataset\.)?Dataset$")


class RankBlindSeed(Rule):
    code = "FL029"
    name = "rank-blind-seed"
    severity = Severity.WARNING
    what = "The random numbers for data are seeded with the same number on every rank or in every worker."
    why = """\
Ranks and workers then draw the same crops, noise and masks, each for different samples: a batch over 8 ranks has one eighth of the randomness it should have.

A generator that a Dataset makes in `__init__` is copied into every worker with its state, so all workers draw the same sequence; and each
epoch starts from that same state again where workers are not persistent."""
    instead = """\
Make the seed depend on who uses it.

- `generator.manual_seed(seed + rank)` for the generator of a DataLoader
- `def worker_init_fn(worker_id): numpy.random.seed(torch.initial_seed() % 2**32)`
- in a Dataset: torch's own random functions, which every worker seeds differently, or a generator that is made on first use in the worker"""
    references = (
        "https://docs.pytorch.org/docs/stable/notes/randomness.html#dataloader",
        "https://docs.pytorch.org/docs/stable/data.html#randomness-in-multi-process-data-loading",
    )
    tokens = (b"seed", b"default_rng", b"RandomState", b"Random(")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        yield from self._generators(module)
        yield from self._worker_functions(module)
        yield from self._datasets(module)
        yield from self._own_batches(module)

    def _generators(self, module: Module) -> Iterator[Finding]:
        """A loader's generator with one seed for all ranks, beside a sampler that divides the data over them."""
        for call in module.method_calls("manual_seed"):
            match call:
                case ast.Call(ast.Attribute(ast.Name(name), _), [seed]):
                    pass
                case _:
                    continue
            scope = module.scope(call)
            if module.resolve(call.func) is not None or _knows_rank(module, seed):
                continue
            given = [
                c
                for c in module.all(ast.Call)
                if module.scope(c) is scope
                and _uses(module, c, name)
                and _sampled_per_rank(module, c)
            ]
            if given:
                yield self.finding(
                    module.location(call),
                    "This generator seeds the loader's workers, and its seed is the same on every rank: workers of all ranks draw the same augmentations. "
                    "Add the rank to the seed",
                )

    def _worker_functions(self, module: Module) -> Iterator[Finding]:
        """A worker_init_fn that seeds without asking which worker it is in."""
        for call in module.all(ast.Call):
            given = module.argument(call, None, "worker_init_fn")
            function = _function(module, given) if given is not None else None
            if function is None:
                continue
            for seeding in (n for n in below(function, ast.Call)):
                if last_name(seeding) in {"seed", "manual_seed"} and seeding.args:
                    if not _varies(module, function):
                        yield self.finding(
                            module.location(seeding),
                            "Every worker is seeded with the same number here, so all of them draw the same random numbers. Use the worker's id, or torch.initial_seed()",
                        )
                        break

    def _datasets(self, module: Module) -> Iterator[Finding]:
        """A generator made in a Dataset's constructor and drawn from for each sample, with loaders that have workers."""
        if not _has_workers(module):
            return
        for cls in module.all(ast.ClassDef):
            if not any(_DATASETS.match(b) for b in module.bases(cls)) or _varies(module, cls):
                continue
            kept = {
                name: value
                for statement in below(cls, ast.Assign)
                if len(statement.targets) == 1
                if (name := of_self(statement.targets[0])) is not None
                if isinstance(value := statement.value, ast.Call)
                and module.resolve(value.func) in _GENERATORS
                if getattr(module.function(statement), "name", "") == "__init__"
            }
            reads = [f for f in methods_of(cls) if f.name != "__init__"]
            for name, value in kept.items():
                if "__getitem__" in {f.name for f in reads} and any(
                    _draws_from(f, name) for f in reads
                ):
                    yield self.finding(
                        module.location(value),
                        f"`self.{name}` is copied into every worker with its state, so all workers draw the same random numbers, and again in each epoch. "
                        "Use torch's random functions, or make the generator on first use in the worker",
                    )

    def _own_batches(self, module: Module) -> Iterator[Finding]:
        """`torch.manual_seed(1337)` in a script of several ranks that draws its batches itself: `torch.randint(len(data) - T, (B,))`."""
        text = module.source.text
        if "DistributedSampler" in text or not (
            "init_process_group" in text or "DistributedDataParallel" in text
        ):
            return
        drawn = {library for library in _DRAWN if _draws_places(module, library)}
        for call in module.method_calls("manual_seed", "seed"):
            library = _SEEDED.get(module.resolve(call.func) or "")
            if library in drawn and len(call.args) == 1 and not _knows_rank(module, call.args[0]):
                yield self.finding(
                    module.location(call),
                    "Every rank seeds with the same number and then draws its batches from it, so all ranks train on the same samples. Add the rank to the seed",
                )

    def check_series(self, run: Any) -> Iterator[Finding]:
        """Loaders with a generator of their own: the seed that each rank wrote down."""
        seeds: dict[Location, list[Any]] = {}
        for rank in run.ranks:
            for entry in rank.meta.get("loader seeds") or ():
                at = Location(entry["path"], entry["line"], function=entry.get("function", ""))
                seeds.setdefault(at, []).append(entry.get("seed"))
        for at, drawn in seeds.items():
            if len(drawn) > 1 and len(drawn) == run.world and len(set(drawn)) == 1:
                yield self.finding(
                    at,
                    f"The generator that seeds this loader's workers starts from {drawn[0]} on all {len(drawn)} ranks, so their workers draw the same random "
                    "numbers. Add the rank to the seed",
                    seed=drawn[0],
                    ranks=len(drawn),
                )

    wrong = (
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler


def make_loader(dataset, rank, world_size):
    sampler = DistributedSampler(dataset, world_size, rank)
    generator = torch.Generator()
    generator.manual_seed(0)  # FL029
    return DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=4, generator=generator)
""",
        """\
import numpy as np
from torch.utils.data import DataLoader


def seed_worker(worker_id):
    np.random.seed(42)  # FL029


def make_loader(dataset):
    return DataLoader(dataset, batch_size=8, num_workers=4, worker_init_fn=seed_worker)
""",
        """\
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, samples, seed=0):
        self.samples = samples
        self.rng = np.random.default_rng(seed)  # FL029

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index] + self.rng.normal()


loader = DataLoader(Noisy(torch.randn(64)), batch_size=8, num_workers=4)
""",
    )
    right = (
        """\
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def seed_worker(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)


class Noisy(Dataset):
    def __init__(self, samples, seed=0):
        self.samples = samples
        self.order = np.random.default_rng(seed).permutation(len(samples))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[self.order[index]] + torch.randn(())


def make_loader(dataset, rank, world_size):
    sampler = DistributedSampler(dataset, world_size, rank)
    generator = torch.Generator()
    generator.manual_seed(100 + rank)
    return DataLoader(
        dataset, batch_size=8, sampler=sampler, num_workers=4, generator=generator, worker_init_fn=seed_worker
    )


def split(dataset):
    generator = torch.Generator()
    generator.manual_seed(0)
    return torch.utils.data.random_split(dataset, [0.9, 0.1], generator=generator)
""",
    )


_SEEDED = {"torch.manual_seed": "torch", "numpy.random.seed": "numpy", "random.seed": "random"}
_DRAWN = {
    "torch": ("torch.randint", "torch.randperm"),
    "numpy": ("numpy.random.randint", "numpy.random.choice", "numpy.random.permutation"),
    "random": ("random.randint", "random.sample", "random.randrange"),
}


def _draws_places(module: Module, library: str) -> bool:
    """Places in the data, `randint(len(data) - length, (batch,))`, by code that does not ask for its rank."""
    for call in module.calls(*_DRAWN[library]):
        function = module.function(call)
        text = module.segment(function) if function is not None else ""
        told = module.argument(call, None, "generator") is not None or "rank" in text
        if any("len(" in module.segment(a) for a in call.args) and not told:
            return True
    return False


def _knows_rank(module: Module, seed: ast.expr) -> bool:
    made = values_of(module).origin(seed)
    nodes = [seed, *([made] if isinstance(made, ast.expr) else [])]
    words = {n.attr for node in nodes for n in below(node, ast.Attribute)}
    return any(_RANK.search(w) for w in words | names_in(*nodes))


def _uses(module: Module, call: ast.Call, generator: str) -> bool:
    """A loader with workers that is given this generator."""
    given, workers = (
        module.argument(call, None, "generator"),
        module.argument(call, 5, "num_workers"),
    )
    if workers is None or module.number(workers) == 0:
        return False
    mine = is_name(given, generator)
    return mine and "loader" in module.segment(call.func).lower()


def _sampled_per_rank(module: Module, call: ast.Call) -> bool:
    """Its sampler divides the data over ranks, at least in one setting."""
    sampler = module.argument(call, None, "sampler")
    made = values_of(module).origin(sampler) if sampler is not None else None
    return made is not None and "DistributedSampler" in module.segment(made)


def _function(module: Module, node: ast.expr) -> ast.AST | None:
    match node:
        case ast.Lambda():
            return node
        case ast.Name(name):
            return module.functions.get(name)
    return None


def _varies(module: Module, node: ast.AST) -> bool:
    """It uses the worker's number or torch's own seed for it, or calls something that may."""
    own = (
        {a.arg for a in node.args.args} if isinstance(node, ast.FunctionDef | ast.Lambda) else set()
    )
    for inner in walk(node):
        match inner:
            case ast.Name(name) if name in own and isinstance(inner.ctx, ast.Load):
                return True
            case ast.Name(name) | ast.Attribute(attr=name) if _RANK.search(name) or name in {
                "getpid",
                "urandom",
                "time",
                "time_ns",
            }:
                return True
    return False


def _has_workers(module: Module) -> bool:
    """A loader in this file that may have workers."""
    for call in module.all(ast.Call):
        workers = (
            module.argument(call, 5, "num_workers") if last_name(call) == "DataLoader" else None
        )
        if workers is not None and module.number(workers) != 0:
            return True
    return False


def _draws_from(function: ast.FunctionDef, name: str) -> bool:
    """`self.rng.normal()`."""
    for node in walk(function):
        match node:
            case ast.Call(ast.Attribute(held, method)) if (
                of_self(held) == name and method in _DRAWS
            ):
                return True
    return False
