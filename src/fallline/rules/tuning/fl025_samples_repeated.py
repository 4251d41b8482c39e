"""FL025: every worker of a loader, or every rank, is given the same samples."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.runs.prints import BATCH
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name

__all__ = ["SamplesRepeated"]

_ITERABLE = ("torch.utils.data.IterableDataset", "torch.utils.data.dataset.IterableDataset")
# What divides the samples, or draws different ones in every worker.
_DIVIDES = re.compile(
    r"worker|rank|shard(?!s$)|split_(by|data|files|among)|world_size|num_replicas|islice|rand|shuffle|sample|choice|seed|queue|socket|stream|env$|simulat",
    re.IGNORECASE,
)


class SamplesRepeated(Observed):
    code = "FL025"
    name = "samples-repeated"
    severity = Severity.ERROR
    what = "Several workers of a loader, or several ranks, are given the same samples: a dataset does not divide them, or all draw the same random numbers."
    why = (
        "Each worker has its own copy of the dataset and iterates over all of it. With 2 workers an epoch holds every sample 2 times: it takes twice "
        "as long, counts of samples and epochs are wrong, and an evaluation averages over repeats."
    )
    instead = (
        "Give each worker its share:\n\n"
        "```python\ndef __iter__(self):\n    worker = torch.utils.data.get_worker_info()\n"
        "    first, step = (worker.id, worker.num_workers) if worker else (0, 1)\n"
        "    yield from itertools.islice(self.samples, first, None, step)\n```"
    )
    references = (
        "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset",
    )
    tokens = (b"IterableDataset",)

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.all(ast.Call):
            if last_name(call) != "DataLoader":
                continue
            workers = module.argument(call, 5, "num_workers")
            if workers is None or module.argument(call, None, "worker_init_fn") is not None:
                continue
            number = module.number(workers)
            dataset = module.argument(call, 0, "dataset")
            cls = _class_of(module, dataset) if dataset is not None else None
            if cls is None or (number is not None and number < 2) or not _yields_all(module, cls):
                continue
            yield self.finding(
                module.location(call),
                f"Each of the loader's workers iterates over the whole {cls.name}, so every sample is seen once per worker. "
                "Divide the samples in `__iter__` with torch.utils.data.get_worker_info()",
                severity=None if number is not None else Severity.WARNING,
            )

    least_batches = 5  # that two ranks have in common

    def check_series(self, run: Any) -> Iterator[Finding]:
        yield from super().check_series(run)
        tracks = [t for t in run.tracks if t.facts.get("wrapper") == "ddp"]
        if not tracks or any(t.facts.get("sharded") for t in run.tracks):
            return  # parts of one model are given the same batch on purpose
        given = {rank.number: _batches(rank) for rank in run.ranks}
        same = [numbers for numbers in combinations(given, 2) if self._repeats(given, *numbers)]
        if same:
            first, second = same[0]
            yield self.finding(
                tracks[0].at,
                f"Ranks {first} and {second} are given the same batches, in all of the {len(given[first].keys() & given[second].keys())} that were compared: "
                "their gradients are equal, so the second rank adds nothing. Divide the data with a DistributedSampler, or add the rank to the seed",
                ranks=sorted({n for pair in same for n in pair}),
            )

    def _repeats(self, given: dict[int, dict[Any, bytes]], first: int, second: int) -> bool:
        """All batches are the same, and they are not one batch that is trained on again and again."""
        one, other = given[first], given[second]
        common = one.keys() & other.keys()
        kinds = {one[key] for key in common}
        return (
            len(common) >= self.least_batches
            and len(kinds) > 1
            and all(one[key] == other[key] for key in common)
        )

    def says(self, entry: dict[str, Any]) -> str:
        if entry.get("drawn"):
            return (
                f"The first batches of {entry['workers']} loader workers are the same although their indices differ: every worker draws the same random numbers. "
                "Seed each worker differently, for example with `np.random.seed(torch.initial_seed() % 2**32)` in worker_init_fn"
            )
        return (
            f"The first batches of {entry['workers']} loader workers are the same: each worker iterates over the whole dataset, so every sample is seen once per worker. "
            "Divide the samples in `__iter__` with torch.utils.data.get_worker_info()"
        )

    wrong = (
        """\
import torch
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path) as lines:
            for line in lines:
                yield torch.tensor([float(x) for x in line.split()])


loader = DataLoader(Lines("train.txt"), batch_size=32, num_workers=4)  # FL025
""",
    )
    right = (
        """\
import itertools

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        with open(self.path) as lines:
            for line in itertools.islice(lines, first, None, step):
                yield torch.tensor([float(x) for x in line.split()])


class Noise(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(8)


class Small(IterableDataset):
    def __iter__(self):
        yield from range(8)


loader = DataLoader(Lines("train.txt"), batch_size=32, num_workers=4)
endless = DataLoader(Noise(), batch_size=32, num_workers=4)
alone = DataLoader(Small(), batch_size=2, num_workers=1)
""",
    )


def _batches(rank: Any) -> dict[Any, bytes]:
    """What a rank was given, by loader, update and micro-batch: a fingerprint of each sample."""
    return {(p.name, p.index, p.number): p.values.tobytes() for p in rank.prints if p.kind == BATCH}


def _class_of(module: Module, dataset: ast.expr) -> ast.ClassDef | None:
    """The IterableDataset of this file that a loader is given."""
    if is_name(dataset, "self"):
        own = module.class_(dataset)
        return own if own is not None and set(module.bases(own)) & set(_ITERABLE) else None
    made = values_of(module).built(dataset)
    if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Name):
        return None
    cls = module.classes.get(made.func.id)
    return cls if cls is not None and set(module.bases(cls)) & set(_ITERABLE) else None


def _yields_all(module: Module, cls: ast.ClassDef) -> bool:
    """It defines `__iter__`, and nothing in it can differ from worker to worker."""
    if not any(isinstance(n, ast.FunctionDef) and n.name == "__iter__" for n in cls.body):
        return False
    # `for shard in self.shards` goes through all of them
    names = [last_name(n) for n in below(cls, ast.Attribute)]
    names += [n.id for n in below(cls, ast.Name) if n.id != "shard"]
    names += [a.arg for a in below(cls, ast.arg)]
    bases = {last_name(b) for b in cls.bases}
    return bases == {"IterableDataset"} and not any(_DIVIDES.search(name) for name in names)
