"""Python's own functions, and the wrappers people put around loaders."""

from __future__ import annotations

import ast
import re

from fallline.api.arithmetic import merged
from fallline.api.call import Call
from fallline.api.gradients import parameter_sets, sync
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.values import (
    NONE,
    Class,
    Const,
    Context,
    External,
    Mapping,
    Param,
    Params,
    Partial,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
)
from fallline.events import Batch, Epoch
from fallline.syntax.nodes import is_name

__all__ = ["LIBRARY"]


def _iterator(paper: Paper, call: Call, wrap: str, of: list[Value], **facts: object) -> Thing:
    return Thing("iterator", wrap, None, {"wrap": wrap, "of": of, **facts})


def _range(paper: Paper, call: Call) -> Value:
    inner = call.node.args[0] if call.node.args else None
    of_loader = isinstance(inner, ast.Call) and is_name(inner.func, "len")
    return _iterator(
        paper, call, "range", [paper.settled(a) for a in call.args], of_loader=of_loader
    )


def _enumerate(paper: Paper, call: Call) -> Value:
    match call.arg(1, "start"):
        case Const(int(first)):
            pass
        case _:
            first = 0
    return _iterator(paper, call, "enumerate", call.args[:1] or [Unknown()], start=first)


def _zip(paper: Paper, call: Call) -> Value:
    return _iterator(paper, call, "zip", call.args or [Unknown()])


def _cycle(paper: Paper, call: Call) -> Value:
    value = paper.settled(call.args[0]) if call.args else Unknown()
    match value:
        case Sequence() | Thing("iterator"):
            return _iterator(paper, call, "cycle", [value])
    return paper.make("loader", call.node, endless=True)


def _through(paper: Paper, call: Call, name: str) -> Value:
    if name.endswith("trange"):
        return _range(paper, call)
    value = paper.settled(call.arg(0, "iterable", "sequence", "obj") or Unknown())
    if isinstance(value, Thing) and value.kind == "model" and name.startswith("copy."):
        copy = paper.make(
            "model",
            call.node,
            **{k: v for k, v in value.facts.items() if k not in {"parameters", "of", "wrapped_by"}},
        )
        copy.cls, copy.attrs = value.cls, dict(value.attrs)
        copy.facts["copy"] = True
        return copy
    if isinstance(value, Sequence) and name.startswith("builtins.") and name != "builtins.iter":
        return Sequence(list(value.items), paper.loops.iteration, value.open)
    return value


def _gives_batches(value: Thing) -> bool:
    """A loader; a data set that a loop goes over itself; an object of the project that can be gone over."""
    if value.kind == "object" and value.cls is not None:
        made = value.cls[1].body
        return any(isinstance(d, ast.FunctionDef) and d.name == "__iter__" for d in made)
    return value.kind == "loader" or bool(value.facts.get("gone_over"))


def _len(paper: Paper, call: Call) -> Value:
    value = paper.settled(call.args[0]) if call.args else Unknown()
    match value:
        case Sequence(open=False):
            return Const(len(value.items))
        case Thing() if _gives_batches(value):
            return Const(paper.batches(value), batches=True)
        case Unknown() if (loader := paper.as_kind(value, "loader")) is not None:
            return Const(paper.batches(loader), batches=True)
    size = Unknown(paper.text(call.node))
    size.outputs = isinstance(value, Tensor) and bool(value.forwards)
    return size


def _iter(paper: Paper, call: Call, name: str) -> Value:
    """`iter(loader)`: a pass begins. Who goes over the loader itself begins it there."""
    value = _through(paper, call, name)
    match value:
        case Thing("loader", loader) if value.facts.get("sampler"):
            paper.emit(Epoch(paper.place(call.node), loader=loader))
    return value


def _next(paper: Paper, call: Call) -> Value:
    value = paper.settled(call.args[0]) if call.args else Unknown()
    match paper.as_kind(value, "loader") or value:
        case Params(sets):
            return Param(sets)
        case Sequence(items):
            return items[0] if items else Unknown()
        case Thing("loader" | "dataset", loader):
            paper.emit(Batch(paper.place(call.node), loader=loader, endless=True))
            return Tensor(False)
        case Thing("iterator", facts={"wrap": "enumerate"}):
            return Sequence([Const(0, True), Tensor(False)])
        case Thing("iterator"):
            return Tensor(False)
    return Unknown("batch")


def _sum(paper: Paper, call: Call) -> Value:
    value = paper.settled(call.args[0]) if call.args else Unknown()
    if isinstance(value, Sequence):
        tensors = [t for t in map(paper.settled, value.items) if isinstance(t, Tensor)]
        if tensors:
            result = tensors[0]
            for other in tensors[1:]:
                result = merged(result, other)
            # made here, not in the loop of the generator
            return replace(result, depth=len(paper.loops.kinds))
    return value if isinstance(value, Tensor) else Unknown()


def _number(paper: Paper, call: Call) -> Value:
    value = paper.settled(call.args[0]) if call.args else Const(0)
    if isinstance(value, Tensor):
        sync(paper, value, "item", call.node)
        return Unknown()
    if isinstance(value, Const):
        try:
            convert = int if is_name(call.node.func, "int") else float
            return Const(convert(value.value), value.varying)
        except (TypeError, ValueError, OverflowError):
            return Unknown()
    return value


def _bool(paper: Paper, call: Call) -> Value:
    value = paper.settled(call.args[0]) if call.args else Const(False)
    return Const(bool(value.value), value.varying) if isinstance(value, Const) else value


def _print(paper: Paper, call: Call) -> Value:
    for value in map(paper.settled, call.args):
        if isinstance(value, Tensor):
            sync(paper, value, "print", call.node)
    return NONE


def _getattr(paper: Paper, call: Call) -> Value:
    name = call.args[1] if len(call.args) > 1 else None
    match name, call.args[2:]:
        case Const(str(written)), [Const(value=(None | False | 0)) as default] if _is_of_options(
            paper, call
        ) and not paper.offers(written):
            return default
        case Const(str(written)), _:
            return paper.attribute(call.args[0], written, call.node)
    return Unknown()


_OPTIONS = re.compile(r"(?i)(^|[._])(args|opts?|cfg|config|options|hparams|flags)$")


def _is_of_options(paper: Paper, call: Call) -> bool:
    """`getattr(self.args, "fsdp", False)`."""
    owner = paper.settled(call.args[0])
    match call.node:
        case ast.Call(args=[asked, *_]) if isinstance(owner, Unknown):
            return _OPTIONS.search(paper.text(asked)) is not None
    return False


def _setattr(paper: Paper, call: Call) -> Value:
    match call.args:
        case [of, Const(name), value, *_]:
            owner = paper.settled(of)
            if isinstance(owner, Thing):
                owner.attrs[str(name)] = value
    return NONE


def _hasattr(paper: Paper, call: Call) -> Value:
    match [paper.settled(value) for value in call.args[:1]], call.args[1:]:
        case [Thing(attrs=attrs)], [Const(name), *_] if name in attrs:
            return Const(True)
        case [Thing(facts=facts)], [Const("module"), *_]:
            return Const(facts.get("wrapper") is not None)
        case [Thing(facts=facts)], [Const("no_sync"), *_]:
            return Const(facts.get("wrapper") == "ddp")
    return Unknown(paper.text(call.node))


_WRAPPERS = {
    "DistributedDataParallel": "ddp",
    "DataParallel": "dp",
    "FullyShardedDataParallel": "fsdp1",
}


def _wrapper(kind: Value) -> str | None:
    return _WRAPPERS.get(kind.name.rpartition(".")[2]) if isinstance(kind, External) else None


def _isinstance(paper: Paper, call: Call) -> Value:
    of = paper.settled(call.args[0]) if call.args else Unknown()
    wanted = paper.settled(call.args[1]) if len(call.args) > 1 else Unknown()
    asked = wanted.items if isinstance(wanted, Sequence) else [wanted]
    wrappers = [_wrapper(paper.settled(kind)) for kind in asked]
    match of, wanted:
        case Thing("model", facts=facts), _ if None not in wrappers:
            return Const(facts.get("wrapper") in wrappers)
        case Thing("sampler"), External(name):
            return Const(name.endswith("DistributedSampler"))
        case Thing(cls=(_, made)), Class(node):
            return Const(made is node)
        case ((Thing() | Tensor()), External("builtins.list" | "builtins.tuple" | "builtins.dict")):
            return Const(False)
        case Tensor(graph=True), _:
            answers = [_is_a(paper.settled(kind)) for kind in asked]
            if True in answers or None not in answers:
                return Const(True in answers)
    return Unknown(paper.text(call.node))


def _is_a(kind: Value) -> bool | None:
    """Whether a tensor with a graph is of this type; None where that is not known."""
    match kind:
        case External("torch.Tensor"):
            return True
        case External(name) if name.startswith(("builtins.", "numpy.")):
            return False
    return None


def _chain(paper: Paper, call: Call) -> Value:
    sets = [parameter_sets(paper, v) for v in call.args]
    if sets and all(s is not None for s in sets):
        return Params(frozenset().union(*(s for s in sets if s is not None)))
    return _iterator(paper, call, "chain", call.args or [Unknown()])


def _filter(paper: Paper, call: Call) -> Value:
    return paper.settled(call.args[-1]) if call.args else Unknown()


def _dict(paper: Paper, call: Call) -> Value:
    return Mapping(dict(call.kwargs), paper.loops.iteration)


def _list(paper: Paper, call: Call) -> Value:
    return (
        _through(paper, call, "builtins.list") if call.args else Sequence([], paper.loops.iteration)
    )


def _null(paper: Paper, call: Call) -> Value:
    return Context()


def _partial(paper: Paper, call: Call) -> Value:
    return Partial(call.args[0], call.args[1:], dict(call.kwargs)) if call.args else Unknown()


def _min(paper: Paper, call: Call) -> Value:
    known = [v for v in map(paper.settled, call.args) if isinstance(v, Const)]
    if len(known) == len(call.args) and len(known) > 1:
        pick = min if is_name(call.node.func, "min") else max
        try:
            return Const(pick(k.value for k in known), any(k.varying for k in known))
        except TypeError:
            return Unknown()
    return Unknown()


# tqdm in all its forms, and what else gives the items of its argument
_PASS_THROUGH = re.compile(
    r"^(tqdm\.trange|builtins\.(iter|reversed|sorted)|copy\.(deepcopy|copy)"
    r"|torch_xla\.distributed\.parallel_loader\.MpDeviceLoader)$"
    r"|^(?!torch\.)(.*\.)?(tqdm|track|progress_bar|islice)$"
)


def _module(paper: Paper, call: Call) -> Value:
    """`model = __import__(config["model"])`: a file of classes, whatever it is called."""
    match [paper.settled(value) for value in call.args[:1]]:
        case [Const(str(name))]:
            return External(name)
    return External("importlib.chosen")


LIBRARY = Library(
    functions={
        "builtins.__import__": _module,
        "importlib.import_module": _module,
        "builtins.range": _range,
        "builtins.enumerate": _enumerate,
        "builtins.zip": _zip,
        "builtins.len": _len,
        "builtins.next": _next,
        "builtins.sum": _sum,
        "builtins.float": _number,
        "builtins.int": _number,
        "builtins.bool": _bool,
        "builtins.print": _print,
        "builtins.getattr": _getattr,
        "builtins.setattr": _setattr,
        "builtins.hasattr": _hasattr,
        "builtins.isinstance": _isinstance,
        "builtins.filter": _filter,
        "builtins.map": _filter,
        "builtins.dict": _dict,
        "builtins.list": _list,
        "builtins.tuple": _list,
        "builtins.set": _list,
        "builtins.min": _min,
        "builtins.max": _min,
        "itertools.cycle": _cycle,
        "itertools.chain": _chain,
        "contextlib.nullcontext": _null,
        "contextlib.suppress": _null,
        "functools.partial": _partial,
        "collections.defaultdict": _dict,
        "collections.OrderedDict": _dict,
    },
    families=((re.compile(r"^builtins\.iter$"), _iter), (_PASS_THROUGH, _through)),
)
