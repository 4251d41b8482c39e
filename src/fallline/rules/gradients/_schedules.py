"""How long a schedule was made, and what that number counts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name, same
from fallline.flow.options import stays
from fallline.flow.values import values_of
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below, is_name, written

__all__ = [
    "batches_in_lightning",
    "before_the_split",
    "counted_before_the_split",
    "every_epoch_in_lightning",
    "expanded",
    "in_micro_batches",
    "prepared",
    "schedules",
    "target_of",
    "times_the_window",
    "window_of_one",
]

# Where each schedule takes its length: position (without keywords) and keywords.
_LENGTHS: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "CosineAnnealingLR": (1, ("T_max",)),
    "OneCycleLR": (2, ("total_steps", "steps_per_epoch")),
    "PolynomialLR": (1, ("total_iters",)),
    "get_scheduler": (3, ("num_training_steps",)),
    "get_linear_schedule_with_warmup": (2, ("num_training_steps",)),
    "get_cosine_schedule_with_warmup": (2, ("num_training_steps",)),
    "get_polynomial_decay_schedule_with_warmup": (2, ("num_training_steps",)),
    "get_cosine_with_hard_restarts_schedule_with_warmup": (2, ("num_training_steps",)),
    "CosineLRScheduler": (None, ("t_initial",)),
}
_LOADER = re.compile(r"loader|(^|_)dl(_|$)|batches", re.IGNORECASE)
_COUNTED = re.compile(r"accum|update|optim|micro|grad_steps", re.IGNORECASE)
_SEVERAL = re.compile(
    r"world|replica|n_?gpu|num_gpu|num_proc|nproc|device_count|rank", re.IGNORECASE
)
_UPDATES_IN_LIGHTNING = re.compile(r"estimated_stepping_batches|len\([\w.()]*loader")
_DEEPEST = 6
_UPDATES = re.compile(
    r"max_train_steps|max_steps|total_updates|num_updates|update_steps", re.IGNORECASE
)
_WINDOW = re.compile(r"accumulation|accum_steps", re.IGNORECASE)


def schedules(module: Module) -> Iterator[tuple[ast.Call, ast.expr]]:
    for call in module.all(ast.Call):
        known = _LENGTHS.get(last_name(call))
        if known is not None:
            place, keywords = known
            length = module.argument(call, place, *keywords)
            if length is not None:
                yield call, length


def prepared(module: Module) -> dict[str, int]:
    """What Accelerate prepares: names, and the first line where it does."""
    found: dict[str, int] = {}
    if any(n == "accelerate" or n.startswith("accelerate.") for n in module.imports.values()):
        for call in module.method_calls("prepare"):
            for given in call.args:
                name = last_name(given)
                found[name] = min(call.lineno, found.get(name, call.lineno))
    return found


def times_the_window(module: Module) -> Iterator[ast.BinOp]:
    """`max_train_steps * gradient_accumulation_steps` as the length of a schedule, where Accelerate knows the window."""
    text = module.source.text
    if "Accelerator(" not in text or not re.search(
        r"gradient_accumulation_(steps|plugin)\s*=", text
    ):
        return
    for product in module.all(ast.BinOp):
        if not isinstance(product.op, ast.Mult) or isinstance(module.parent(product), ast.BinOp):
            continue
        written = module.segment(product)
        if _UPDATES.search(written) and _WINDOW.search(written) and _is_length(module, product):
            yield product


def _is_length(module: Module, product: ast.BinOp) -> bool:
    """`num_training_steps=...`, as an argument or as a name, of a schedule that steps with every update."""
    match module.parent(product):
        case ast.keyword("num_training_steps", _):
            return True
        case ast.Assign([ast.Name("num_training_steps")]):
            return True
    return False


def target_of(module: Module, call: ast.Call) -> str:
    """The name that a schedule is given."""
    match module.parent(call):
        case ast.Assign([target]):
            return last_name(target)
    return ""


def counted_before_the_split(
    module: Module, call: ast.Call, length: ast.expr, prepared: dict[str, int]
) -> bool:
    """`max_steps * num_processes`, where `max_steps` was computed from `len(loader)` and the loader is prepared later."""
    match length:
        case ast.BinOp(steps, ast.Mult(), processes) if "num_processes" in module.segment(
            processes
        ):
            written = expanded(module, steps) + [
                node
                for value in _set_before(module, steps, call)
                for node in expanded(module, value)
            ]
        case _:
            return False
    early = [
        of
        for of in _lengths(written)
        if of.lineno <= call.lineno < prepared.get(module.segment(of), 0)
    ]
    return bool(early) and "num_processes" not in _names(written)


def _set_before(module: Module, name: ast.expr, call: ast.Call) -> list[ast.expr]:
    """What `args.max_train_steps` was set to above a call, in the same function."""
    return [
        a.value
        for a in module.all(ast.Assign)
        if a.lineno < call.lineno
        and module.function(a) is module.function(call)
        and any(same(t, name) or written(t) == written(name) for t in a.targets)
    ]


def _pieces(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of an expression; how what `len()` is asked of was made says nothing about the count."""
    yield node
    if not (isinstance(node, ast.Call) and is_name(node.func, "len")):
        for child in ast.iter_child_nodes(node):
            yield from _pieces(child)


def expanded(module: Module, node: ast.expr) -> list[ast.AST]:
    """The nodes of an expression, with those of what its names stand for."""
    found: list[ast.AST] = []
    queue: list[tuple[ast.expr, int]] = [(node, 0)]
    while queue and len(found) < 400:
        here, depth = queue.pop()
        for inner in _pieces(here):
            found.append(inner)
            if isinstance(inner, ast.Name | ast.Attribute) and depth < _DEEPEST:
                made = values_of(module).origin(inner)
                if isinstance(made, ast.expr) and made is not inner:
                    queue.append((made, depth + 1))
    return found


def _lengths(nodes: list[ast.AST]) -> list[ast.expr]:
    """What `len()` is asked of."""
    return [
        n.args[0] for n in nodes if isinstance(n, ast.Call) and is_name(n.func, "len") and n.args
    ]


def _names(nodes: list[ast.AST]) -> str:
    return " ".join(last_name(n) for n in nodes if isinstance(n, ast.Name | ast.Attribute))


def _divides(nodes: list[ast.AST]) -> bool:
    return any(isinstance(n, ast.Div | ast.FloorDiv | ast.Mod) for n in nodes)


def in_micro_batches(module: Module, call: ast.Call, written: list[ast.AST]) -> bool:
    """A length of whole loaders, of a scheduler that advances at the end of each accumulation window."""
    if not any(_LOADER.search(module.segment(of)) for of in _lengths(written)):
        return False
    if _divides(written) or _COUNTED.search(_names(written)):
        return False
    steps = [c for c in module.method_calls("step") if _is_of(module, c, call)]
    return bool(steps) and all(
        _boundary(module, s) is not None or _in_update(module, s) for s in steps
    )


def _in_update(module: Module, step: ast.Call) -> bool:
    """In a helper that makes the whole update, and that is called at the end of each window."""
    helper = module.function(step)
    if not isinstance(helper, ast.FunctionDef):
        return False
    calls = below(helper, ast.Call)
    if not any(map(_optimizes, calls)) or any(last_name(c) == "backward" for c in calls):
        return False
    sites = values_of(module).calls_of(helper)
    tests = (module.enclosing(site, ast.If, ast.For, ast.While) for site in sites)
    return bool(sites) and all(
        isinstance(t, ast.If) and "%" in module.segment(t.test) and _backward_before(module, t)
        for t in tests
    )


_OPTIMIZER = re.compile(r"(^|_)opt(im\w*)?(_|$|\d)", re.IGNORECASE)


def _optimizes(call: ast.Call) -> bool:
    """`self.optim.step()`."""
    match call.func:
        case ast.Attribute(of, "step"):
            return _OPTIMIZER.search(last_name(of)) is not None
    return False


def window_of_one(module: Module, call: ast.Call) -> bool:
    """The window is 1 wherever the project gives it a number."""
    steps = (c for c in module.method_calls("step") if _is_of(module, c, call))
    tests = (_boundary(module, step) for step in steps)
    names = [last_name(n) for t in tests if t for n in below(t.test, ast.Name, ast.Attribute)]
    return any(stays((module,), name, 1, code=True) for name in names)


def _is_of(module: Module, step: ast.Call, made: ast.Call) -> bool:
    """`scheduler.step()` of what this call made, by the name that it was given."""
    match step.func:
        case ast.Attribute(used, "step"):
            return last_name(used) in _named(module, made) - {""}
    return False


def _named(module: Module, made: ast.Call) -> set[str]:
    """The names that an object is given where it is made, or by those who call the function that returns it."""
    match module.parent(made):
        case ast.Assign([target]):
            return {last_name(target)}
        case ast.Return() as back:
            function = module.function(back)
            calls = values_of(module).calls_of(function) if function is not None else []
            assigned = (module.parent(c) for c in calls)
            return {
                last_name(t) for up in assigned if isinstance(up, ast.Assign) for t in up.targets
            }
    return set()


def _boundary(module: Module, step: ast.Call) -> ast.If | None:
    """The test of the window around it, in which the optimizer steps too, after a backward that is outside of it."""
    inner: ast.AST = step
    for up in module.parents(step):
        if isinstance(up, ast.If) and inner in up.body:
            text = module.segment(up.test)
            window = "%" in text and ("accum" in text.lower() or _backward_before(module, up))
            calls = [call for s in up.body for call in below(s, ast.Call)]
            steps = [c for c in calls if last_name(c) in {"step", "backward"}]
            optimizes = [n for n in steps if n is not step and _optimizes(n)]
            inside = [n for n in steps if last_name(n) == "backward"]
            if window and optimizes and not inside:
                return up
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        inner = up
    return None


def _backward_before(module: Module, boundary: ast.If) -> bool:
    """A backward of every iteration comes right before this test, in the same block."""
    block = Editor(module).block_of(boundary)
    before = block[: block.index(boundary)]
    return any(
        last_name(call) == "backward"
        for s in before
        if isinstance(s, ast.Expr | ast.With)
        for call in below(s, ast.Call)
    )


def before_the_split(module: Module, written: list[ast.AST]) -> bool:
    """`len(dataset) // batch_size` of a dataset that a DistributedSampler splits, by the batch size of one process."""
    if _SEVERAL.search(_names(written)):
        return False
    split = [
        c.args[0] for c in module.all(ast.Call) if last_name(c) == "DistributedSampler" and c.args
    ]
    sizes = [
        size
        for c in module.all(ast.Call)
        if last_name(c) == "DataLoader" and module.argument(c, None, "sampler") is not None
        if (size := module.argument(c, 1, "batch_size")) is not None
    ]
    asked = [of for of in _lengths(written) if any(same(of, d) for d in split)]
    by = [
        n.right
        for n in written
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div | ast.FloorDiv)
    ]
    return bool(asked) and any(same(b, size) for b in by for size in sizes)


def every_epoch_in_lightning(module: Module) -> Iterator[ast.Call]:
    """A schedule over `estimated_stepping_batches` or batches, returned by a `configure_optimizers` that names no interval."""
    for call, length in schedules(module):
        function = module.function(call)
        if function is None or getattr(function, "name", "") != "configure_optimizers":
            continue
        whole = module.segment(function)
        by_hand = "automatic_optimization" in module.source.text or "interval" in whole
        if not by_hand and _UPDATES_IN_LIGHTNING.search(written(length)):
            yield call


def batches_in_lightning(module: Module) -> Iterator[ast.Call]:
    """A schedule over batches that advances with every update, in a file whose Trainer accumulates."""
    text = module.source.text
    window = re.search(r"accumulate_grad_batches\s*=\s*(\w+)", text)
    if window is None or window[1] in {"1", "None"} or "automatic_optimization" in text:
        return
    for call, length in schedules(module):
        function = module.function(call)
        if getattr(function, "name", "") != "configure_optimizers" or function is None:
            continue
        spelled = expanded(module, length)
        counts = any("loader" in module.segment(of) for of in _lengths(spelled))
        per_step = re.search(r"interval\W+step", module.segment(function))
        if counts and per_step and not _divides(spelled) and not _COUNTED.search(_names(spelled)):
            yield call
