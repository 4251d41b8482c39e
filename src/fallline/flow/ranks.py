"""Which code runs on every rank: guards of any kind, early returns, decorators, guarded callers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.left_before import tests_left_at
from fallline.syntax import Module
from fallline.syntax.nodes import below, walk
from fallline.syntax.once import once

__all__ = [
    "called_functions",
    "is_distributed",
    "mentions_rank",
    "of_one_rank",
    "only_on_some_ranks",
    "owned_by_framework",
    "runs_on_every_rank",
]

_RANK = re.compile(
    r"rank|main_?proc|is_?main|master|primary|chief|world_?zero|global_?zero|local_?zero|process_?(index|id)|proc_?id|is_?root|gpu|device_?id|leader",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r"world_?size|distributed|ddp|n_?gpus?|multi_?gpu", re.IGNORECASE)
_DISTRIBUTED = ("torch.nn.parallel.DistributedDataParallel", "torch.distributed.init_process_group")
_FRAMEWORKS = (
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "deepspeed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "fairscale",
    "horovod",
)
# A model that is on the device of its rank does not say which rank it is.
_PLACES_MODEL = frozenset({"DistributedDataParallel", "DDP", "to", "cuda"})
Def = ast.FunctionDef | ast.AsyncFunctionDef


def is_distributed(module: Module) -> bool:
    """This file wraps a model in DDP, joins a process group or is handed what was wrapped, and no group that is written down to be of one rank."""
    joins = any(True for _ in module.calls(*_DISTRIBUTED)) or _is_handed_ddp(module)
    return joins and not of_one_rank(module)


def _is_handed_ddp(module: Module) -> bool:
    """`sampler.set_epoch(epoch)` beside `model.module.state_dict()`: what several ranks train."""
    text = module.source.text
    return ".set_epoch(" in text and ".module.state_dict()" in text


def of_one_rank(module: Module) -> bool:
    """Every process group that this file joins has `world_size=1`, as a number."""
    joined = list(module.calls("torch.distributed.init_process_group"))
    sizes = [Module.argument(call, 3, "world_size") for call in joined]
    return bool(sizes) and all(size is not None and module.number(size) == 1 for size in sizes)


def owned_by_framework(module: Module) -> bool:
    """A framework that this file uses decides which rank does what."""
    names = set(module.imports.values())
    return any(name == f or name.startswith(f + ".") for name in names for f in _FRAMEWORKS)


@once
def mentions_rank(module: Module, node: ast.AST, depth: int = 2) -> bool:
    """An expression asks, somewhere, which process this is."""
    for part in walk(node):
        match part:
            case ast.Attribute(attr=text) | ast.Constant(str() as text) | ast.Name(text):
                if _RANK.search(text):
                    return True
            case ast.Call() if depth:
                if any(mentions_rank(m, f, 0) for m, f in called_functions(module, part)):
                    return True
        if depth and isinstance(part, ast.Name) and _value_mentions_rank(module, part, depth):
            return True
    return False


def _value_mentions_rank(module: Module, name: ast.Name, depth: int) -> bool:
    scope = module.scope(name)
    bound = module.bindings(name.id, scope) or module.bindings(name.id, None)
    values = [
        up.value
        for b in bound
        if isinstance(up := module.parent(b), ast.Assign | ast.AnnAssign) and up.value is not None
    ]
    return any(
        mentions_rank(module, v, depth - 1)
        for v in values
        if last_name(v) not in _PLACES_MODEL and all(n is not name for n in walk(v))
    )


def called_functions(module: Module, call: ast.Call) -> list[tuple[Module, Def]]:
    """The function of the project that a call means, with the file it is in."""
    match call.func:
        case ast.Name(name) if name in module.functions:
            return [(module, module.functions[name])]
    dotted = module.resolve(call.func)
    if dotted is None or module.project is None or dotted.startswith("torch."):
        return []
    match module.project.find(dotted, module):
        case home, ast.FunctionDef() | ast.AsyncFunctionDef() as function:
            return [(home, function)]
    return []


def only_on_some_ranks(module: Module, node: ast.AST) -> bool:
    """Inside its own function, this node is reached under a test of the rank, of whatever kind."""
    here: ast.AST = node
    for up in module.parents(node):
        match up:
            case ast.If(test) | ast.IfExp(test) | ast.While(test) if here is not test:
                if mentions_rank(module, test) or _other_arm_saves(module, up, here):
                    return True
                if _for_one_process(module, up, here):
                    return True
            case ast.BoolOp(values=values):
                if any(mentions_rank(module, v) for v in values if v is not here):
                    return True
            case ast.With(items):
                if any(mentions_rank(module, i.context_expr) for i in items):
                    return True
        if isinstance(here, ast.stmt) and any(
            mentions_rank(module, test) for test in tests_left_at(up, here)
        ):
            return True
        if isinstance(up, Def):
            by_decorator = any(mentions_rank(module, d) for d in up.decorator_list)
            return bool(_RANK.search(up.name)) or by_decorator
        here = up
    return False


def _for_one_process(module: Module, test: ast.AST, here: ast.AST) -> bool:
    """`if world_size == 1:`, `if not args.distributed:`, or the else of a test for several processes."""
    if not isinstance(test, ast.If):
        return False
    text = module.segment(test.test)
    if not _SEVERAL.search(text):
        return False
    one = re.search(r"\bnot\b|==\s*[01]\b|<=\s*1\b|<\s*2\b|False", text) is not None
    return one == (here in test.body)


def _other_arm_saves(module: Module, test: ast.AST, here: ast.AST) -> bool:
    """The other arm saves on one rank: this one is for a run of one process."""
    if not isinstance(test, ast.If):
        return False
    other = test.orelse if here in test.body else test.body
    guarded = (n for s in other for n in below(s, ast.If) if mentions_rank(module, n.test))
    saves = {id(call) for call in module.calls("torch.save")}
    return any(id(c) in saves for n in guarded for c in ast.walk(n))


def runs_on_every_rank(module: Module, node: ast.AST, seen: frozenset[int] = frozenset()) -> bool:
    """This node is known to run on all ranks: from the top of the file, or from where the ranks are set up."""
    if only_on_some_ranks(module, node):
        return False
    function = module.function(node)
    if function is None:
        return True
    if id(function) in seen:
        return False
    joined = module.calls(*_DISTRIBUTED)
    if any(up is function for call in joined for up in module.parents(call)):
        return True
    if any(last_name(c) == "backward" for c in below(function, ast.Call)):
        return True  # each rank computes its part of the gradient
    return any(
        runs_on_every_rank(module, site, seen | {id(function)}) for site in _uses(module, function)
    )


def _uses(module: Module, function: Def) -> Iterator[ast.AST]:
    """Calls of a function or method of this file, and places that hand it on (mp.spawn)."""
    own = {id(n) for n in ast.walk(function)}
    for name in module.all(ast.Name):
        if name.id == function.name and isinstance(name.ctx, ast.Load) and id(name) not in own:
            up = module.parent(name)
            if not (isinstance(up, ast.Call) and up.func is name and _tells_rank(module, up)):
                yield name
    for call in module.method_calls(function.name):
        if (
            id(call) not in own
            and module.class_(function) is not None
            and not _tells_rank(module, call)
        ):
            yield call


def _tells_rank(module: Module, call: ast.Call) -> bool:
    """The call is given the rank, or a path made of it: what happens inside depends on it."""
    return any(mentions_rank(module, a) for a in [*call.args, *(k.value for k in call.keywords)])
