"""A project's own copy of DistributedSampler: it gives each rank its part, in an order that its epoch seeds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.makers import class_of
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
_KNOWN = re.compile(r"torch\.utils\.data\.|torchdata\.")
_LOADERS = frozenset({"DataLoader", "StatefulDataLoader"})
_DISTRIBUTED = re.compile(r"(^|[a-z])DistributedSampler$")
_PAST_BATCHES = re.compile(
    r"batch_sampler(\.sampler)?\.set_epoch|\.sampler\.sampler\.set_epoch|getattr\(.*batch_sampler"
)
_HELD_OUT = re.compile(r"(?i)(^|_)(val|valid|validation|test|eval|dev|infer|predict)")


def never_told(module: Module) -> Iterator[tuple[ast.Call, bool]]:
    """DistributedSamplers of a file that goes through several epochs and that nobody can tell the epoch; and whether they are seen to shuffle.

    Nobody in the project spells `set_epoch`, however the sampler reaches the loop; or nobody in this file does, and neither the sampler nor its loader leaves it;
    or it is inside a batch sampler, past which nobody looks.
    """
    made = {c: sure for c in _samplers(module) if (sure := _shuffles(module, c)) is not None}
    if not made or module.project is None or _others_tell(module):
        return
    for call, sure in made.items():
        if _behind_a_batch_sampler(module, call):
            yield call, sure
        elif not _KNOWN.match(module.resolve(call.func) or "") or not _has_epochs(module):
            continue  # a sampler of the project may be endless
        elif "set_epoch" not in module.source.text:
            if _stays(module, call) or not module.project.spells(module, b"set_epoch"):
                yield call, sure


def _others_tell(module: Module) -> bool:
    used = {name.partition(".")[0] for name in module.imports.values()}
    return not used.isdisjoint(_TELL) or any(map(_TRAINER.match, module.imports.values()))


def _samplers(module: Module) -> list[ast.Call]:
    return module.calls_named(_DISTRIBUTED)


def _behind_a_batch_sampler(module: Module, made: ast.Call) -> bool:
    """It only goes into a batch sampler that takes no epoch, and `loader.sampler.set_epoch` is for a different one."""
    name = _name_of(module, made)
    here = module.scope(made)
    reads = [n for n in _read(module, name) if _means(module, n, here)] if name else []
    if any(_is_told(module, n) for n in reads):
        return False
    wrappers = [_call_around(module, n) for n in reads if _hands_on(module, n)]
    batches = [w for w in wrappers if w is not None and last_name(w).endswith("BatchSampler")]
    if not batches or len(batches) != len(wrappers) or module.project is None:
        return False
    if any(_takes_epoch(module, w) or not _only_for_a_loader(module, w) for w in batches):
        return False
    told = module.project.naming(module, "set_epoch")
    texts = [module.source.text, *(text for _, text in told)]
    return bool(told) and not any(_PAST_BATCHES.search(text) for text in texts)


def _is_told(module: Module, sampler: ast.Name) -> bool:
    """`sampler.set_epoch(epoch)`."""
    match module.parent(sampler):
        case ast.Attribute(attr="set_epoch"):
            return True
    return False


def _takes_epoch(module: Module, made: ast.Call) -> bool:
    name = module.resolve(made.func) or ""
    if name.startswith("torch.utils.data."):
        return False
    found = class_of(module, made.func, module.resolve(made.func))
    return found is None or find_method(*found, "set_epoch") is not None


def _only_for_a_loader(module: Module, made: ast.Call) -> bool:
    name = _name_of(module, made)
    here = module.scope(made)
    reads = [n for n in _read(module, name) if module.scope(n) is here] if name else [made]
    around = [_call_around(module, n) for n in reads]
    return bool(around) and all(w is not None and last_name(w) in _LOADERS for w in around)


def _call_around(module: Module, node: ast.AST) -> ast.Call | None:
    """The call that this is an argument of."""
    up = module.parent(node)
    up = module.parent(up) if isinstance(up, ast.keyword) else up
    return up if isinstance(up, ast.Call) and up.func is not node else None


_GOES_OVER = frozenset({"enumerate", "tqdm", "zip", "len", "iter", "next", "trange", "islice"})


def _stays(module: Module, made: ast.Call) -> bool:
    """The sampler goes into a DataLoader of this file, and that is only gone over here, or in functions of this file."""
    loaders: list[ast.Call] = []
    for read in _reads_of(module, made) or ():
        if _hands_on(module, read):
            loader = _call_around(module, read)
            if loader is None or last_name(loader) not in _LOADERS:
                return False
            loaders.append(loader)
    reads = [_reads_of(module, loader) for loader in loaders]
    return bool(reads) and all(
        found and all(_is_gone_over(module, n) for n in found) for found in reads
    )


def _reads_of(module: Module, made: ast.Call) -> list[ast.expr] | None:
    """Where what is made is read by its name or attribute, also by whom a function of this file returns it to; None where it may be read out of sight."""
    up = module.parent(made)
    up = module.parent(up) if isinstance(up, ast.IfExp) else up
    holder = up.targets[0] if isinstance(up, ast.Assign) and len(up.targets) == 1 else None
    reads = _read_from(module, holder)
    found: list[ast.expr] = []
    for read in reads or ():
        returned = _returned_to(module, read)
        held = [_read_from(module, target) for target in returned or ()]
        if returned is None:
            found.append(read)
        elif None in held:
            return None
        found += [n for these in held for n in these or ()]
    return found if reads is not None else None


def _read_from(module: Module, holder: ast.expr | None) -> list[ast.expr] | None:
    match holder:
        case ast.Name(name):
            scope = module.scope(holder)
            return [n for n in _read(module, name) if _means(module, n, scope)]
        case ast.Attribute(ast.Name("self"), kept):
            cls = module.class_(holder)
            if cls is None or module.project is None:
                return None
            # by another object, or by a class that is made of this one
            out_of_sight = re.compile(rf"(?<!\bself)\.{re.escape(kept)}\b|\b{cls.name}\b")
            others = module.project.naming(module, kept)
            if any(out_of_sight.search(text) for _, text in others):
                return None
            attributes = module.all(ast.Attribute)
            return [n for n in attributes if n.attr == kept and isinstance(n.ctx, ast.Load)]
    return None


def _returned_to(module: Module, read: ast.expr) -> list[ast.expr | None] | None:
    """What the calls in this file of a method or a function bind to what it returns here; None where it is not returned."""
    place = None
    match up := module.parent(read):
        case ast.Tuple(elts) as several:
            place, up = elts.index(read), module.parent(several)
    if not isinstance(up, ast.Return):
        return None
    function = module.function(read)
    if not isinstance(function, ast.FunctionDef) or module.project is None:
        return [None]
    method = isinstance(module.parent(function), ast.ClassDef)
    if not method and module.project.naming(module, function.name):
        return [None]
    calls = module.calls_by_last_name.get(function.name, [])
    return [_bound_to(module, call, place) for call in calls] or [None]


def _bound_to(module: Module, call: ast.Call, place: int | None) -> ast.expr | None:
    match module.parent(call), place:
        case ast.Assign([ast.Tuple(elts)]), int() if place < len(elts):
            return elts[place]
        case ast.Assign([target]), None:
            return target
    return None


def _is_gone_over(module: Module, loader: ast.expr) -> bool:
    match module.parent(loader):
        case ast.For(iter=over):
            return over is loader
        case ast.Call(func) as call if last_name(call) in _GOES_OVER:
            return func is not loader
        case ast.Call(ast.Name(function)):
            return function in module.functions
        case ast.Attribute(attr="dataset" | "batch_size" | "num_workers" | "state_dict"):
            return True
        case ast.Attribute(attr="load_state_dict"):
            return True
    return False


def _shuffles(module: Module, call: ast.Call) -> bool | None:
    """`DistributedSampler(train_data)`: torch's own, of data that is not held out. None: it does not shuffle, False: an option says whether it does."""
    dotted = module.resolve(call.func) or ""
    if last_name(call) == "DistributedSampler" and not dotted.startswith("torch.utils.data."):
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
        if name is None or not made.args:
            continue
        scope, data = module.scope(made), written(made.args[0])
        reads = [n for n in _read(module, name) if _means(module, n, scope)]
        given_on = [n for n in reads if _hands_on(module, n)]
        for loader in module.calls("torch.utils.data.DataLoader"):
            given = module.argument(loader, 0, "dataset")
            same = given is not None and written(given) == data
            if not same or module.scope(loader) is not scope or _may_be_given(module, loader):
                continue
            if all(_leaves_with(module, n, _name_of(module, loader)) for n in given_on):
                yield name, loader


def _means(module: Module, name: ast.Name, scope: ast.AST | None) -> bool:
    """Whether a name that is read stands for what this scope binds: it is of the scope, or of a function that binds none of its own."""
    own = module.scope(name)
    return own is scope or not module.bindings(name.id, own)


def _leaves_with(module: Module, sampler: ast.Name, loader: str | None) -> bool:
    """`return sampler, loader`: it goes together with the loader that was made without it."""
    match module.parent(sampler):
        case ast.Tuple(elts) as both if loader is not None:
            returned = isinstance(module.parent(both), ast.Return)
            return returned and any(is_name(e, loader) for e in elts)
    return False


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


def _hands_on(module: Module, name: ast.expr) -> bool:
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
