"""FL303: a shuffling DistributedSampler never gets set_epoch over several epochs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.events import (
    Backward,
    Batch,
    Epoch,
    EpochEnd,
    Forward,
    Loader,
    Sampler,
    SamplerEpoch,
    Trace,
)
from fallline.finding import Finding, Severity
from fallline.flow.samplers import never_told
from fallline.location import Location
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.classes import find_method
from fallline.syntax.nodes import methods_of, written

_SAMPLES = re.compile(r"sampler$")
_LOADS = re.compile(r"loader", re.IGNORECASE)


# A test of the sampler itself; not an option that is called after one: `args.ra_sampler`.
_OPTIONS = r"(self\.)?(args|cfg|config|opts?|hparams|FLAGS)"
_ASKS = re.compile(rf"^(?!{_OPTIONS}\.[\w.]* is |hasattr\({_OPTIONS}, ).*sampler")


class SamplerEpochMissing(Rule):
    code = "FL303"
    name = "sampler-epoch-missing"
    severity = Severity.ERROR
    what = """\
A `DistributedSampler` shuffles the data of several epochs and `set_epoch` is never called."""
    why = """\
The sampler shuffles with `seed + epoch`, and the epoch stays 0: the order is identical in every epoch, and every rank sees the same part of the data each time.

Nothing raises, and one epoch looks right."""
    instead = """\
Call `set_epoch` at the start of every epoch.

```python
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        ...
```"""
    facts = ("distributed-setup",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        # `if isinstance(loader.sampler, DistributedSampler): set_epoch` is a switch that may not go with the sampler
        if trace.hides("epoch") or any(_ASKS.search(setting) for setting in trace.settings):
            return
        for sampler in trace.objects_of(Sampler):
            if not _shuffles(sampler) or sampler.at is None:
                continue
            called = any(_may_be(trace, e, sampler) for e in trace.of(SamplerEpoch))
            again = None if called else _second_pass(trace, sampler)
            if again is not None:
                yield self.finding(
                    sampler.at,
                    "This DistributedSampler shuffles but set_epoch is never called, so every epoch has the same order. Call sampler.set_epoch(epoch) "
                    f"before each pass over the data ({again.near(sampler.at)}).",
                )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """A wrapper around data that takes the epoch and keeps it to itself."""
        for cls in module.classes.values():
            kept = _keeps_the_epoch(cls)
            inner = _goes_over(cls) if kept is not None else None
            if kept is None or inner is None:
                continue
            yield self.finding(
                module.location(kept),
                f"set_epoch stops here: the epoch is stored, nothing in {cls.name} reads it, and `self.{inner}`, which is iterated over, never gets it, so every epoch has the same order. Call `self.{inner}.set_epoch(epoch)`.",
                presuming=f"`self.{inner}` shuffles by the epoch",
            )
        yield from self._lost_on_the_way(module)
        for made, sure in never_told(module):
            yield self.finding(
                module.location(made),
                "This DistributedSampler shuffles, and set_epoch is called nowhere that has it, so every epoch has the same order. Call "
                "sampler.set_epoch(epoch) before each pass over the data.",
                severity=Severity.WARNING,
                presuming=None if sure else "the option for `shuffle` is on",
            )

    def _lost_on_the_way(self, module: Module) -> Iterator[Finding]:
        """A wrapper that other classes of the project would hand the epoch to, and that has no `set_epoch`."""
        deaf = {c: inner for c in module.classes.values() if (inner := _hides_the_epoch(module, c))}
        forwards = [c for c in module.classes.values() if _epoch_goes_to(c)]
        for cls, inner in deaf.items():
            for other in forwards:
                places = _epoch_goes_to(other)
                if (
                    _SAMPLES.search(inner)
                    and inner in places
                    and f"{inner}.{inner}" not in _past(places, inner)
                ):
                    yield self.finding(
                        module.location(places[inner][-1]),
                        f"set_epoch stops at {cls.name}: it has no `set_epoch`, so where it wraps a sampler, that sampler keeps its epoch and every epoch has "
                        f"the same order. Pass the epoch on to `self.{inner}.{inner}` too.",
                        presuming=f"{cls.name} can be this `{inner}`",
                    )
            if _LOADS.search(inner) and (forwards or _beside_forwards(module)):
                yield self.finding(
                    module.location(_method(cls, "__iter__") or cls),
                    f"{cls.name} wraps a loader but, unlike the other loaders here, has no `set_epoch`: a trainer that calls it finds nothing, and every epoch "
                    f"has the same order. Pass `set_epoch(epoch)` on to `self.{inner}`.",
                    presuming=f"`self.{inner}` shuffles by the epoch",
                )

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """A sampler that some setting tells its epoch is told on purpose in that one only."""
        called = {e.sampler for e in trace.of(SamplerEpoch)}
        for sampler in trace.objects_of(Sampler):
            if sampler.at is not None and called & {None, sampler.id}:
                yield sampler.at

    wrong = (
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
sampler = DistributedSampler(data, num_replicas=2, rank=0)  # FL303
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
""",
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def loaders(rank, world_size):
    data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=True)  # FL303
    return DataLoader(data, batch_size=8, sampler=sampler)


def train_one_epoch(model, loader, optimizer):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def main():
    loader = loaders(0, 2)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        train_one_epoch(model, loader, optimizer)


main()
""",
    )
    right = (
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
""",
        # no shuffling
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, 2, 0, shuffle=False))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
""",
        # one epoch
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
""",
        # the order of validation data does not matter
        """\
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
sampler = DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=8, sampler=sampler)
checks = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, num_replicas=2, rank=0))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for inputs, targets in checks:
            model(inputs)
""",
    )


def _keeps_the_epoch(cls: ast.ClassDef) -> ast.Assign | None:
    """`self.epoch = epoch` as all that `set_epoch` does, where no method of the class reads it again."""
    for method in cls.body:
        match method:
            case ast.FunctionDef("set_epoch", body=body):
                match body[-1]:
                    case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Name()) as kept:
                        alone = all(isinstance(s, ast.Expr) for s in body[:-1])
                        return kept if alone and not _reads(cls, name) else None
    return None


def _reads(cls: ast.ClassDef, name: str) -> bool:
    """Whether a class reads an attribute, or may leave that to a base: `super().__iter__()`."""
    return any(
        (isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Load))
        or (isinstance(n, ast.Attribute) and n.attr in {"__iter__", "__dict__"})
        for n in ast.walk(cls)
    )


def _goes_over(cls: ast.ClassDef) -> str | None:
    """`x`, where `__iter__` goes over `self.x`."""
    own = (m for m in methods_of(cls) if m.name == "__iter__")
    for node in (n for method in own for n in ast.walk(method)):
        match node:
            case ast.For(iter=ast.Attribute(ast.Name("self"), name)):
                return name
            case ast.For(
                iter=ast.Call(ast.Name("enumerate"), [ast.Attribute(ast.Name("self"), name), *_])
            ):
                return name
            case ast.Call(ast.Name("iter"), [ast.Attribute(ast.Name("self"), name)]):
                return name
    return None


def _method(cls: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((m for m in methods_of(cls) if m.name == name), None)


def _hides_the_epoch(module: Module, cls: ast.ClassDef) -> str | None:
    """`x`, where a class goes over `self.x` and neither takes an epoch nor hands on what it does not know."""
    kept = _goes_over(cls)
    if kept is None or any(find_method(module, cls, m) for m in ("set_epoch", "__getattr__")):
        return None
    init = _method(cls, "__init__")
    given = {a.arg for a in init.args.args} if init is not None else set()
    made = module.attribute_values(cls, kept)
    return kept if any(isinstance(v, ast.Name) and v.id in given for v in made) else None


def _epoch_goes_to(cls: ast.ClassDef) -> dict[str, list[ast.Call]]:
    """`self.batch_sampler.sampler.set_epoch(epoch)` in `set_epoch`: the calls by the attributes they go through."""
    method = _method(cls, "set_epoch")
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(method) if method is not None else ():
        match node:
            case ast.Call(ast.Attribute(holder, "set_epoch")):
                through = written(holder).split(".")
                if through[0] == "self" and len(through) > 1:
                    found.setdefault(through[1], []).append(node)
    return found


def _past(places: dict[str, list[ast.Call]], inner: str) -> str:
    return " ".join(written(call) for call in places[inner])


def _beside_forwards(module: Module) -> bool:
    """A loader class in a file beside this one that hands the epoch on."""
    if module.project is None:
        return False
    others = module.project.beside(module, b"def set_epoch")
    return any(
        _LOADS.search(cls.name) and _epoch_goes_to(cls)
        for other in others
        for cls in other.classes.values()
    )


def _shuffles(sampler: Sampler) -> bool:
    # a sampler that does not say otherwise shuffles, but only a door that knows it says so
    return sampler.type == "DistributedSampler" and sampler.shuffle is True


def _second_pass(trace: Trace, sampler: Sampler) -> Location | None:
    """Where training goes over the data of this sampler more than once."""
    loaders = {o.id: o for o in trace.objects_of(Loader) if o.sampler == sampler.id}
    passes = [e for e in trace.of(Epoch) if e.loader in loaders and _trains(trace, e)]
    if len(passes) > 1:
        return passes[0].at
    batches = trace.of(Batch).where(
        lambda b: b.loader in loaders and bool(loaders[b.loader].endless)
    )
    return batches.first.at if batches.first is not None and trace.of(Backward) else None


def _may_be(trace: Trace, event: SamplerEpoch, sampler: Sampler) -> bool:
    """set_epoch was called on this sampler, or on one that is reached some other way."""
    called = trace.sampler(event.sampler)
    return called is None or called is sampler or called.assumed


def _trains(trace: Trace, epoch: Epoch) -> bool:
    """A backward runs in this pass over the data, and not in the one after it: the end of a prefetcher is not seen."""
    evaluated = False
    for event in trace.after(epoch):
        match event:
            case Backward():
                return True
            case Forward(grad=False):
                evaluated = True
            case Epoch() if evaluated:
                return False
            case Epoch(loader=loader) | EpochEnd(loader=loader) if loader == epoch.loader:
                return False
    return False
