"""What a pasted fragment does that no rule reports, because it is too short for the reader: a few shapes of code, each with a name that claims use (`code:`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from fallline.syntax.nodes import below, names_read
from fallline.triage.pasted import as_far_as

__all__ = ["seen_in_code"]

_LENGTHS = frozenset({"T_max", "total_iters", "num_training_steps", "milestones", "step_size"})


def seen_in_code(code: str) -> frozenset[str]:
    """The names of the shapes that a piece of Python has; none where it does not parse."""
    if (tree := as_far_as(code)) is None:
        return frozenset()
    found = {name for name, has in _SHAPES.items() if has(tree)}
    if _broadcast(code):
        found.add("loss-over-two-shapes")
    return frozenset(found)


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr, int]]:
    """Each name that is given a value, the value, and its line."""
    for node in below(tree, ast.Assign):
        for target in node.targets:
            yield ast.unparse(target), node.value, node.lineno


def _made(tree: ast.AST) -> Iterator[tuple[str, ast.Call, int]]:
    """Likewise, where the value is a call."""
    for name, value, line in _assigned(tree):
        if isinstance(value, ast.Call):
            yield name, value, line


def _calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    """The calls of a function or method with one of these names."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in names:
                yield node


def _owner(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _optimizer_before_model(tree: ast.AST) -> bool:
    """`opt = SGD(model.parameters())`, and `model = ...` in a later line."""
    made = {name: line for name, _, line in _made(tree)}
    return any(
        line > call.lineno
        for call in _calls(tree, "parameters")
        if (line := made.get(_owner(call))) is not None
        and not any(name == _owner(call) and at < call.lineno for name, _, at in _assigned(tree))
    )


def _no_grad_feeds_the_loss(tree: ast.AST) -> bool:
    """What is computed under no_grad is used after the block, and a backward follows."""
    backwards = [call.lineno for call in _calls(tree, "backward")]
    for node in below(tree, ast.With):
        if any(_calls(node, "no_grad", "inference_mode")):
            made = {name for name, _, _ in _made(node)}
            last = node.end_lineno or node.lineno
            used = {n.id for n in names_read(tree) if n.lineno > last}
            if made & used and any(line > last for line in backwards):
                return True
    return False


def _scheduler_steps_per_batch(tree: ast.AST) -> bool:
    """A schedule whose length is the number of epochs, stepped in the inner of two loops."""
    schedules = {
        name
        for name, call, _ in _made(tree)
        if any(k.arg in _LENGTHS and not _counts_updates(k.value) for k in call.keywords)
    }
    return any(
        _owner(call) in schedules
        for outer in below(tree, ast.For)
        for inner in outer.body
        if isinstance(inner, ast.For)
        for call in _calls(inner, "step")
    )


def _counts_updates(length: ast.expr) -> bool:
    """Whether a length is given in updates: `epochs * len(loader)`, `total_steps`."""
    return re.search(r"len\(|step|iter|batch|update", ast.unparse(length)) is not None


def _scheduler_steps_first(tree: ast.AST) -> bool:
    """`scheduler.step()` at the head of an epoch, before the loop over its batches."""
    for outer in below(tree, ast.For):
        for n, statement in enumerate(outer.body):
            rest = outer.body[n + 1 :]
            steps = isinstance(statement, ast.Expr) and any("sched" in _owner(c).lower() for c in _calls(statement, "step"))  # fmt: skip
            if steps and any(isinstance(s, ast.For) and any(_calls(s, "step")) for s in rest):
                return True
    return False


def _only_the_model_is_restored(tree: ast.AST) -> bool:
    """A file is loaded into the model, an optimizer is made, and nothing is loaded into it."""
    loaded = [_owner(call).lower() for call in _calls(tree, "load_state_dict")]
    optimizers = [
        name for name, value, _ in _assigned(tree) if re.search(r"\boptim\.|Adam|SGD", ast.unparse(value))
    ]  # fmt: skip
    reads = any(_owner(call) == "torch" for call in _calls(tree, "load"))
    return reads and bool(loaded) and bool(optimizers) and not any("opt" in name for name in loaded)


def _loss_made_anew(tree: ast.AST) -> bool:
    """`torch.tensor(loss.item(), requires_grad=True)`, or a loss from numbers, before a backward."""
    anew = {
        name
        for name, call, _ in _made(tree)
        if any(k.arg == "requires_grad" for k in call.keywords)
        and "tensor" in ast.unparse(call.func).lower()
        and "loss" in ast.unparse(call)
    }
    return any(_owner(call) in anew for call in _calls(tree, "backward"))


def _fake_not_detached(tree: ast.AST) -> bool:
    """What one network made goes into another one in two losses, and neither time detached."""
    made = {name for name, call, _ in _made(tree) if isinstance(call.func, ast.Name)}
    uses = []
    for call in below(tree, ast.Call):
        match call:
            case ast.Call(ast.Name(by), [ast.Name(what), *_]):
                uses.append((by, what))
    twice = {(by, what) for by, what in uses if uses.count((by, what)) > 1 and what in made}
    return bool(twice) and len(list(_calls(tree, "backward"))) > 1


def _ctx_keeps_an_intermediate(tree: ast.AST) -> bool:
    """`ctx.x = ...` of a result that is not an argument of forward."""
    for function in below(tree, ast.FunctionDef):
        if function.name == "forward" and function.args.args:
            ctx, given = function.args.args[0].arg, {a.arg for a in function.args.args}
            computed = {name for name, value, _ in _assigned(function) if not isinstance(value, ast.Constant)}  # fmt: skip
            for name, value, _ in _assigned(function):
                kept = isinstance(value, ast.Name) and value.id in computed - given
                if name.startswith(f"{ctx}.") and kept:
                    return True
    return False


def _trains_in_eval_mode(tree: ast.AST) -> bool:
    """`model.eval()` before the backward, and no `train()` between."""
    evals = [call.lineno for call in _calls(tree, "eval") if not call.args]
    trains = [call.lineno for call in _calls(tree, "train")]
    return any(
        at < call.lineno and not any(at < line < call.lineno for line in trains)
        for call in _calls(tree, "backward")
        for at in evals
    ) and not any(True for _ in _calls(tree, "no_grad"))


def _module_requires_grad(tree: ast.AST) -> bool:
    """`model.head.requires_grad = False`: an attribute of a module, which its parameters never look at."""
    looped = {ast.unparse(node.target) for node in below(tree, ast.For)}
    for name, value, _ in _assigned(tree):
        owner, _, attribute = name.rpartition(".")
        last = owner.rpartition(".")[2]
        set_off = attribute == "requires_grad" and isinstance(value, ast.Constant)
        tensor = owner in looped or re.search(
            r"(?i)^(p|w|b|x)$|param|weight|bias|tensor|input", last
        )
        if set_off and "." in owner and not tensor:
            return True
    return False


def _steps_every_k(tree: ast.AST) -> bool:
    """A step in `if i % k == 0:`, and before it the backward of a loss that the fragment neither makes nor divides."""
    made = {name for name, _, _ in _assigned(tree)}
    undivided = [
        call.lineno
        for call in _calls(tree, "backward")
        if "/" not in ast.unparse(call) and not made & {n.id for n in names_read(call)}
    ]
    return any(
        any(line < node.lineno for line in undivided)
        for node in below(tree, ast.If)
        if "%" in ast.unparse(node.test) and any(_calls(node, "step"))
    )


def _cudnn_benchmark_beside_seeds(tree: ast.AST) -> bool:
    """Seeds are set, and `cudnn.benchmark = True` lets every run choose its kernels again."""
    chosen = any(
        name.endswith("cudnn.benchmark") and isinstance(value, ast.Constant) and value.value is True
        for name, value, _ in _assigned(tree)
    )
    return chosen and any(True for _ in _calls(tree, "manual_seed", "seed_everything"))


def _adapter_loaded_frozen(tree: ast.AST) -> bool:
    """`PeftModel.from_pretrained(base, path)` without `is_trainable=True`: an adapter for inference."""
    for call in _calls(tree, "from_pretrained"):
        if _owner(call).rpartition(".")[2].startswith("Peft") and len(call.args) > 1:
            given = [k.value for k in call.keywords if k.arg == "is_trainable"] + call.args[3:4]
            if not any(isinstance(v, ast.Constant) and v.value is True for v in given):
                return True
    return False


_SHAPES: dict[str, Callable[[ast.AST], bool]] = {
    "optimizer-before-model": _optimizer_before_model,
    "no-grad-feeds-the-loss": _no_grad_feeds_the_loss,
    "scheduler-steps-per-batch": _scheduler_steps_per_batch,
    "scheduler-steps-first": _scheduler_steps_first,
    "only-the-model-is-restored": _only_the_model_is_restored,
    "loss-made-anew": _loss_made_anew,
    "fake-not-detached": _fake_not_detached,
    "ctx-keeps-an-intermediate": _ctx_keeps_an_intermediate,
    "trains-in-eval-mode": _trains_in_eval_mode,
    "module-requires-grad": _module_requires_grad,
    "steps-every-k": _steps_every_k,
    "adapter-loaded-frozen": _adapter_loaded_frozen,
    "cudnn-benchmark-beside-seeds": _cudnn_benchmark_beside_seeds,
}
_SHAPE = re.compile(r"#[^\n\[(]*[\[(](\d+)(?:, ?(\d+))?,?[\])]")


def _broadcast(code: str) -> bool:
    """Comments that give [N, 1] and [N] to the two sides of a loss."""
    if not re.search(r"(?i)mse|l1_loss|smooth_l1|huber", code):
        return False
    shapes = {(int(a), int(b) if b else 0) for a, b in _SHAPE.findall(code)}
    return any((n, 1) in shapes and (n, 0) in shapes for n, _ in shapes)
