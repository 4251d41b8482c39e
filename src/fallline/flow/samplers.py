"""A project's own copy of DistributedSampler: it gives each rank its part, in an order that its epoch seeds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.syntax import Module
from fallline.syntax.classes import find_method
from fallline.syntax.nodes import below, is_name, methods_of, walk, written
from fallline.syntax.once import once

__all__ = ["is_distributed_sampler", "never_given", "never_told"]

_SEEDS = frozenset({"manual_seed", "seed", "default_rng", "RandomState", "Random"})
_MAY_SET = frozenset({"__init__", "set_epoch"})


# Their loops tell the sampler its epoch, or bring a sampler of their own.
_TELL = frozenset(
    "accelerate lightning pytorch_lightning composer catalyst ignite colossalai mmengine mmcv fastai ray".split()
)
# transformers has models and schedules too; only its trainers have loops.
_TRAINER = re.compile(r"transformers(\.\w+)*\.\w*Trainer|transformers$")
_HELD_OUT = re.compile(r"(?i)(^|_)(val|valid|validation|test|eval|dev|infer|predict)")


def never_told(module: Module) -> Iterator[tuple[ast.Call, bool]]:
    """DistributedSamplers of a file that goes through several epochs and that nobody can tell the epoch; and whether they are seen to shuffle.

    Nobody in the project spells `set_epoch`, however the sampler reaches the loop; or nobody in this file does, and neither the sampler nor its loader leaves it.
    """
    made = {c: sure for c in _samplers(module) if (sure := _shuffles(module, c)) is not None}
    if not made or module.project is None or not _has_epochs(module):
        return
    used = {name.partition(".")[0] for name in module.imports.values()}
    if not used.isdisjoint(_TELL) or "set_epoch" in module.source.text:
        return
    if any(_TRAINER.match(name) for name in module.imports.values()):
        return
    for call, sure in made.items():
        if _stays(module, call) or not module.project.spells(module, b"set_epoch"):
            yield call, sure


def _samplers(module: Module) -> list[ast.Call]:
    return module.calls_by_last_name.get("DistributedSampler", [])


_GOES_OVER = frozenset({"enumerate", "tqdm", "zip", "len", "iter", "next", "trange", "islice"})


def _stays(module: Module, made: ast.Call) -> bool:
    """The sampler goes into a DataLoader of this scope, and that is only gone over here, or in functions of this file."""
    name = _name_of(module, made)
    if name is None:
        return False
    loaders: set[str] = set()
    for read in _read(module, name):
        if module.scope(read) is not module.scope(made) or not _hands_on(module, read):
            continue
        up = module.parent(read)
        loader = module.parent(up) if isinstance(up, ast.keyword) else up
        if not isinstance(loader, ast.Call) or last_name(loader) != "DataLoader":
            return False
        of = _name_of(module, loader)
        if of is None:
            return False
        loaders.add(of)
    reads = [n for of in loaders for n in _read(module, of)]
    return bool(reads) and all(_is_gone_over(module, n) for n in reads)


def _is_gone_over(module: Module, loader: ast.Name) -> bool:
    match module.parent(loader):
        case ast.For(iter=over):
            return over is loader
        case ast.Call(func) as call if last_name(call) in _GOES_OVER:
            return func is not loader
        case ast.Call(ast.Name(function)):
            return function in module.functions
        case ast.Attribute(attr="dataset" | "batch_size" | "num_workers"):
            return True
    return False


def _shuffles(module: Module, call: ast.Call) -> bool | None:
    """`DistributedSampler(train_data)`: torch's own, of data that is not held out. None: it does not shuffle, False: an option says whether it does."""
    if not (module.resolve(call.func) or "").startswith("torch.utils.data."):
        return None
    said = next((k.value for k in call.keywords if k.arg == "shuffle"), ast.Constant(True))
    up = module.parent(call)
    names = [*call.args[:1], *(up.targets if isinstance(up, ast.Assign) else ())]
    held_out = any(_HELD_OUT.search(last_name(n)) for n in names)
    if held_out or (isinstance(said, ast.Constant) and said.value is not True):
        return None
    return isinstance(said, ast.Constant)


def _has_epochs(module: Module) -> bool:
    """`for epoch in ...:`."""
    return any(
        "epoch" in written(loop.target).lower() or "epoch" in written(loop.iter).lower()
        for loop in module.all(ast.For)
    )


def never_given(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Loaders of data for which a DistributedSampler was made that nothing ever gets, with the name it was given."""
    for made in _samplers(module):
        name = _name_of(module, made)
        if name is None or not made.args or any(_hands_on(module, n) for n in _read(module, name)):
            continue
        scope, data = module.scope(made), written(made.args[0])
        for loader in module.calls("torch.utils.data.DataLoader"):
            given = module.argument(loader, 0, "dataset")
            same = given is not None and written(given) == data
            if same and module.scope(loader) is scope and not _may_be_given(module, loader):
                yield name, loader


_SET_LATER = re.compile(r"""\[["'](batch_)?sampler["']\]\s*=|\.update\(""")


def _may_be_given(module: Module, loader: ast.Call) -> bool:
    """`DataLoader(data, **options)`, unless the options are written down and no sampler is among them."""
    if any(isinstance(a, ast.Starred) for a in loader.args):
        return True
    if any(k.arg is None for k in loader.keywords) and _SET_LATER.search(module.source.text):
        return True
    for options in (module.value(k.value) for k in loader.keywords if k.arg is None):
        match options:
            case ast.Dict(keys=keys):
                names = [k.value if isinstance(k, ast.Constant) else None for k in keys]
            case ast.Call(ast.Name("dict"), [], keywords):
                names = [k.arg for k in keywords]
            case _:
                return True
        if not {None, "sampler", "batch_sampler"}.isdisjoint(names):
            return True
    return False


def _name_of(module: Module, made: ast.Call) -> str | None:
    """`sampler` of `sampler = DistributedSampler(data)`, also where it is None on one process."""
    up = module.parent(made)
    up = module.parent(up) if isinstance(up, ast.IfExp) else up
    match up:
        case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
            return name
    return None


def _read(module: Module, name: str) -> list[ast.Name]:
    return [n for n in module.all(ast.Name) if n.id == name and isinstance(n.ctx, ast.Load)]


def _hands_on(module: Module, name: ast.Name) -> bool:
    """Whether it goes anywhere from here; not where it is only asked for, or told its epoch."""
    match module.parent(name):
        case ast.Attribute(attr="set_epoch") | ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return False
        case ast.If() | ast.UnaryOp(ast.Not()):
            return False
        case ast.IfExp(test=test):
            return test is not name
        case ast.BoolOp() as both:
            return not isinstance(module.parent(both), ast.If | ast.Expr)
    return True


@once
def is_distributed_sampler(module: Module, cls: ast.ClassDef) -> bool:
    """`g.manual_seed(self.epoch)` in `__iter__` of a sampler that knows its rank, where only set_epoch moves the epoch on."""
    bases = module.bases(cls)
    if not any(b.startswith("torch.utils.data.") and b.endswith("Sampler") for b in bases):
        return False
    taken, order = find_method(module, cls, "set_epoch"), find_method(module, cls, "__iter__")
    if taken is None or order is None or not _names(cls, "rank"):
        return False
    return _seeds_by_epoch(order[1]) and not _moves_on_by_itself(cls)


def _names(cls: ast.ClassDef, name: str) -> bool:
    return any(n.attr == name for n in below(cls, ast.Attribute))


def _seeds_by_epoch(order: ast.AST) -> bool:
    calls = [n for n in below(order, ast.Call) if last_name(n) in _SEEDS]
    return any(_is_epoch(n) for call in calls for a in call.args for n in walk(a))


def _moves_on_by_itself(cls: ast.ClassDef) -> bool:
    """`self.epoch += 1` at the end of a pass."""
    return any(
        _is_epoch(n) and isinstance(n.ctx, ast.Store)
        for method in methods_of(cls)
        if method.name not in _MAY_SET
        for n in below(method, ast.Attribute)
    )


def _is_epoch(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "epoch" and is_name(node.value, "self")
