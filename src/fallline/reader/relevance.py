"""Which code can matter to the training protocol, so that the rest is passed over quickly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TypeAlias

from fallline.flow.calls import last_name
from fallline.syntax import Module
from fallline.syntax.nodes import below, children, methods_of, written
from fallline.syntax.once import once

__all__ = [
    "TOKENS",
    "acts",
    "acts_here",
    "begins",
    "called_names",
    "called_under_no_grad",
    "evaluates",
    "makes",
    "only_frozen",
    "relevant",
    "runs_parts",
    "steps_in",
    "trains",
]

# A call with one of these names is, or may be, part of the protocol.
TRIGGERS = frozenset(
    "backward manual_backward step zero_grad unscale_ clip_grad_norm_ clip_grad_value_ clip_grad_norm clip_gradients clip_ "
    "accumulate no_sync no_backward_sync eval train set_epoch append manual_step optimizer_step minimize apply_gradients "
    "checkpoint detect_anomaly set_detect_anomaly requires_grad_ prepare setup initialize toggle_optimizer update "
    "get_total_norm clip_grads_with_norm_ set_requires_gradient_sync no_grad inference_mode autocast item".split()
)
# Of those, what changes the order of things: a switch around one of these is worth trying both ways.
_ACTS = frozenset(
    "backward manual_backward step zero_grad unscale_ clip_grad_norm_ clip_grad_value_ clip_grad_norm clip_gradients clip_ "
    "accumulate no_sync no_backward_sync eval set_epoch optimizer_step minimize detect_anomaly set_detect_anomaly "
    "get_total_norm clip_grads_with_norm_ set_requires_gradient_sync autocast GradScaler no_grad scaler.update".split()
)
_STEPS = frozenset({"step", "optimizer_step", "minimize", "apply_gradients"})
_TRAINS = frozenset(
    "backward manual_backward accumulate minimize training_step compute_loss".split()
)
_EVALUATES = frozenset({"eval"})
# What a long function may make that its caller's loop goes over or trains: without it nobody knows the sampler or the shards.
_MAKES = frozenset(
    "DataLoader DistributedSampler DDP DistributedDataParallel FSDP FullyShardedDataParallel".split()
)
# What an execution on paper is begun for.
_BEGINS = frozenset(
    "backward manual_backward step training_step compute_loss eval accumulate minimize unscale_ clip_grad_norm_ "
    "clip_grad_value_ zero_grad".split()
)
# What a method of a model does that is more than a pass through it.
_MORE_THAN_A_PASS = frozenset(
    "backward manual_backward step zero_grad optimizer_step minimize eval train".split()
)
# A file with none of these makes no trace; the most frequent one first.
TOKENS = (
    b"optimizer",
    b"backward(",
    b"training_step",
    b"train_step",
    b".train(",
    b"compute_loss",
    b"ComposerModel",
    b".eval(",
    b".step(",
)


Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_NO_GRAD = re.compile(r"\b(no_grad|inference_mode|set_grad_enabled)\b")


def called_under_no_grad(module: Module, node: Definition) -> bool:
    """Some call of this function in its file is written inside `with torch.no_grad():`, or in a function decorated so."""
    return node.name in _names_under_no_grad(module)


@once
def _names_under_no_grad(module: Module) -> frozenset[str]:
    calls = module.all(ast.Call)
    return frozenset(last_name(call) for call in calls if _under_no_grad(module, call))


def _under_no_grad(module: Module, node: ast.AST) -> bool:
    return any(
        _turns_gradients_off(module, up)
        for up in module.parents(node)
        if isinstance(up, ast.With | ast.FunctionDef)
    )


@once
def _turns_gradients_off(module: Module, node: ast.With | ast.FunctionDef) -> bool:
    match node:
        case ast.With(items=items):
            held = [item.context_expr for item in items]
        case ast.FunctionDef(decorator_list=held):
            pass
    return any(_NO_GRAD.search(module.segment(h)) for h in held)


_FREEZES = re.compile(r"\.freeze\w*\(|requires_grad_\(False\)|requires_grad ?= ?False")


def only_frozen(module: Module) -> bool:
    """A file that freezes models and trains none: whether anything is left that requires a gradient is not seen there."""
    text = module.source.text
    return "backward(" not in text and ".step(" not in text and _FREEZES.search(text) is not None


@once
def called_names(module: Module, node: ast.AST) -> frozenset[str]:
    """The simple names of everything called in a node, itself included, and of what is handed to calls as an argument."""
    return frozenset.union(*_named(module.notes("named"), node))


_Names: TypeAlias = tuple[frozenset[str], frozenset[str]]


def _named(kept: dict[ast.AST, _Names], node: ast.AST) -> _Names:
    """What is called in a node, and what is only handed over: a function to call there, or a number (`log(loss, step)`)."""
    known = kept.get(node)
    if known is None:
        # asked for at every depth, walked once: the innermost statements first, without recursion
        unknown = [node]
        for here in unknown:
            unknown += [n for n in children(here) if n not in kept]
        for inner in reversed(unknown[1:]):
            if isinstance(inner, ast.stmt):
                kept[inner] = _names_in(kept, inner)
        known = kept[node] = _names_in(kept, node)
    return known


def _names_in(kept: dict[ast.AST, _Names], node: ast.AST) -> _Names:
    """The same, where the answers for the statements below are known."""
    found: set[str] = set()
    handed: set[str] = set()
    stack = [node]
    while stack:
        inner = stack.pop()
        if inner is not node and isinstance(inner, ast.stmt):
            called, given = kept[inner]
            found |= called
            handed |= given
            continue
        stack += children(inner)
        if isinstance(inner, ast.Call):
            found.update(_calls(inner.func))
            if not _only_asks(inner.func):
                # a closure or step function handed to something that will call it
                handed.update(a.id for a in inner.args if isinstance(a, ast.Name))
        elif isinstance(inner, ast.Attribute) and inner.attr in _LIKE_ZERO_GRAD:
            found.add("zero_grad")
        elif isinstance(inner, ast.AugAssign) and _LOSS.search(last_name(inner.value)):
            found.add("append")  # `total += criterion(output, target)` keeps what it adds
    return frozenset(found), frozenset(handed - found)


_LOSS = re.compile(r"loss|criterion", re.IGNORECASE)
_LIKE_ZERO_GRAD = frozenset({"grad", "require_backward_grad_sync", "sync_gradients"})


def _calls(function: ast.expr) -> list[str]:
    """The names by which a call may be known: `update`, `scaler.update`."""
    match function:
        case ast.Name(name):
            return [name]
        case ast.Attribute(of, name):
            owner = [f"{of.id}.{name}"] if isinstance(of, ast.Name) else []
            scales = name == "update" and "scal" in written(of).lower()
            return [name, *owner, *(["scaler.update"] if scales else [])]
    return []


# Functions that look at what they are given and call none of it: `isinstance(model, Trainer)` trains nothing.
_ASKS = frozenset("isinstance issubclass hasattr callable len type id str repr print super".split())


def _only_asks(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in _ASKS


def relevant(module: Module, nodes: Iterable[ast.AST], wanted: frozenset[str] = TRIGGERS) -> bool:
    """Whether these statements call, directly or through functions of the project, what is wanted."""
    kept = module.notes(_QUESTIONS[wanted])
    for node in nodes:
        known = kept.get(node)
        if known is None:
            known = _reaches(module, node, wanted, {}) == _REACHED
        if known:
            return True
    return False


def acts(module: Module, nodes: Iterable[ast.AST]) -> bool:
    """Whether these statements do part of the protocol."""
    return relevant(module, nodes, _ACTS)


def acts_here(module: Module, nodes: Iterable[ast.AST]) -> bool:
    """Whether these statements themselves do part of the protocol, not through other functions."""
    kept = module.notes("named")
    return any(not _named(kept, node)[0].isdisjoint(_ACTS) for node in nodes)


def begins(module: Module, nodes: Iterable[ast.AST]) -> bool:
    """Whether these statements are worth executing for their own sake."""
    return relevant(module, nodes, _BEGINS)


def steps_in(module: Module, nodes: Iterable[ast.AST]) -> bool:
    """Whether these statements step an optimizer (or something that is called so)."""
    return relevant(module, nodes, _STEPS)


def evaluates(module: Module, nodes: Iterable[ast.AST]) -> bool:
    """Whether these statements put a model into eval mode."""
    return relevant(module, nodes, _EVALUATES)


def makes(module: Module, nodes: Iterable[ast.AST]) -> bool:
    """Whether these statements make a loader, or wrap a model for several ranks."""
    return relevant(module, nodes, _MAKES)


def runs_parts(module: Module, method: ast.FunctionDef) -> bool:
    """A method of a model that calls what the model holds (`self.encoder(x)`), and neither trains nor sets a mode."""
    kept = module.notes("runs parts")
    known: bool | None = kept.get(method)
    if known is None:
        kept[method] = False  # a method that calls itself
        own = _runs_own(module, method)
        known = kept[method] = own and not relevant(module, [method], _MORE_THAN_A_PASS)
    return known


# Methods of every module: calling one of these runs no part.
_OF_EVERY_MODULE = re.compile(
    r"(named_)?(parameters|buffers|modules|children)|(load_)?state_dict|register_\w+|add_module|get_(parameter|buffer|submodule)|"
    r"to|cuda|cpu|float|half|double|bfloat16|type|apply|share_memory|requires_grad_|compile|extra_repr|log\w*|save\w*|print\w*|init\w*|_init\w*"
)


# `self.criterion(made, target)` says how good an output is: no part of the model runs.
_JUDGES = re.compile(r"(?i)criteri(on|a)|loss(es)?$|loss_f|metric|accuracy")


def _runs_own(module: Module, method: ast.FunctionDef, depth: int = 3) -> bool:
    """`self(x)`, `self.encoder(x)`, `self.blocks[0](x)`, or another method that does so."""
    cls = module.class_(method)
    methods = {m.name: m for m in methods_of(cls)} if cls is not None else {}
    for call in below(method, ast.Call):
        match call.func:
            case ast.Name("self") | ast.Subscript(ast.Attribute(ast.Name("self"))):
                return True
            case ast.Attribute(ast.Name("self"), name) if name not in methods:
                if call.args and not (_OF_EVERY_MODULE.fullmatch(name) or _JUDGES.search(name)):
                    return True
            case ast.Attribute(ast.Name("self"), name) if methods[name] is not method:
                if name == "forward" or (depth and _runs_own(module, methods[name], depth - 1)):
                    return True
    return False


def trains(module: Module, nodes: Iterable[ast.AST]) -> bool:
    """Whether these statements run a backward pass."""
    return relevant(module, nodes, _TRAINS)


# Names too common to tell whose method is called.
_COMMON = frozenset(
    "run get add close start log load save write read items keys values format join split copy to size view open print info "
    "warning debug error exists mkdir decode encode strip replace search match group pop index count sort main build make "
    "create reset state_dict load_state_dict parse init setdefault startswith endswith lower upper extend remove append".split()
)


_REACHED, _SURE = -1, 1 << 30
_MOST = 200  # functions that are looked into for one answer


def _reaches(
    module: Module, node: ast.AST, wanted: frozenset[str], begun: dict[int, int], depth: int = 0
) -> int:
    """_REACHED, _SURE not, or the depth of an outer search that the answer waits for: functions call each other in circles.

    Only what is sure is kept, so that no answer depends on which file was read before.
    """
    kept = module.notes(_QUESTIONS[wanted])
    known = kept.get(node)
    if known is not None:
        return _REACHED if known else _SURE
    if not _named(module.notes("named"), node)[0].isdisjoint(wanted):
        kept[node] = True
        return _REACHED
    if id(node) in begun:
        return begun[id(node)]
    if len(begun) > _MOST:
        return 0
    begun[id(node)] = depth
    answer = _SURE
    for name in sorted(called_names(module, node) - _COMMON):
        for home, target in definitions(module, name):
            if wanted in _IN_A_STEP and _is_left_open(name, target):
                kept[node] = True
                return _REACHED
            answer = min(answer, _reaches(home, target, wanted, begun, depth + 1))
            if answer == _REACHED:
                kept[node] = True
                return _REACHED
    if answer >= depth:
        kept[node] = False
        answer = _SURE
    begun[id(node)] = answer
    return answer


_QUESTIONS = {
    TRIGGERS: "reaches a trigger",
    _ACTS: "acts",
    _TRAINS: "trains",
    _BEGINS: "begins",
    _STEPS: "steps",
    _MAKES: "makes",
    _EVALUATES: "evaluates",
    _MORE_THAN_A_PASS: "more than a pass",
}


# What the step of a training does, wherever it is written.
_IN_A_STEP = frozenset({TRIGGERS, _ACTS, _TRAINS, _STEPS})
_STEP_NAME = re.compile(
    r"(?i)(^|_)(train|training|update|optimize|learn|fit|forward_backward)(_|$)"
)


def _is_left_open(name: str, target: ast.AST) -> bool:
    """`def train_step(self, batch): raise NotImplementedError` of a base class: the classes that derive from it train there."""
    if not isinstance(target, Definition) or not _STEP_NAME.search(name.rpartition(".")[2]):
        return False
    match [s for s in target.body if not _is_text(s)]:
        case [] | [ast.Pass()]:
            return True
        case [
            ast.Raise(ast.Name("NotImplementedError") | ast.Call(ast.Name("NotImplementedError")))
        ]:
            return True
    return False


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


_STARS = 4  # a package that re-exports everything would have all its files read


def _starred(module: Module, name: str) -> tuple[Module, ast.AST] | None:
    """A class that `from utils import *` brings."""
    if module.project is None or len(module.star_imports) > _STARS:
        return None
    found = (module.project.find(f"{star}.{name}", module) for star in module.star_imports)
    return next((there for there in found if there is not None), None)


def definitions(module: Module, name: str) -> list[tuple[Module, ast.AST]]:
    """Functions and methods of the project that a simple name may mean from this module."""
    kept = module.notes("definitions")
    by_name: dict[str, list[tuple[Module, ast.AST]]] | None = kept.get(module.tree)
    if by_name is None:
        by_name = kept[module.tree] = {}
        for qualified, function in module.functions.items():
            by_name.setdefault(qualified.rpartition(".")[2], []).append((module, function))
        for qualified, cls in module.classes.items():
            by_name.setdefault(qualified.rpartition(".")[2], []).append((module, cls))
    if name not in by_name:
        base, _, last = name.partition(".")
        there = None
        if base in module.imports and module.project is not None:
            dotted = f"{module.imports[base]}.{last}" if last else module.imports[base]
            if module.project.may_hold(dotted, module, TOKENS):
                there = module.project.find(dotted, module)
        elif module.project is not None and not last and name[:1].isupper():
            there = _starred(module, name)
        by_name[name] = [there] if there is not None else []
    return by_name[name]
