"""The mutations of losses, targets, labels and autograd functions: `mutations.py` with other edits.

    python benchmarks/mutations_losses.py FOLDER ... [--each 8] [--seed 0] [--keep OUT.jsonl] [--write]

An edit undoes a precaution that somebody took: the epsilon under a logarithm, the `detach()` of a target, the `squeeze(-1)` of a
prediction, the `log_softmax` before `nll_loss`. Whoever wrote it thought that it was needed; that is the ground truth, and it
is now and then more careful than it has to be. Only functions that look like part of training are changed: those with a loss in their
name or body, no tests, no metrics.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator

import mutations
from mutation_kinds import Edit, File, Mutation

_LOSS = re.compile(r"loss|criterion|nll|\bkl|entropy|elbo|backward\(", re.I)
_NOT_TRAINED = re.compile(r"metric|accuracy|(^|_)eval|(^|_)test|valid|sample|generate|plot", re.I)
_SMALL = re.compile(r"(?i)eps(ilon)?$|^1e-\d+$|smooth|tiny|small")
_TARGET = re.compile(r"(?i)target|teacher|next_(q|v|value)|q_next|momentum|key|pseudo|ema")
_ADVANTAGE = re.compile(r"(?i)advantage|^adv$|(^|_)returns?$|old_log|old_action_log|baseline")
_COMPARED = ("mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss", "binary_cross_entropy")


def functions(file: File) -> list[ast.FunctionDef]:
    """Those that look like part of training."""
    known: list[ast.FunctionDef] | None = getattr(file, "training", None)
    if known is None:
        known = [
            n for n in ast.walk(file.tree) if isinstance(n, ast.FunctionDef) and _trains(file, n)
        ]
        file.training = known  # type: ignore[attr-defined]
    return known


def _trains(file: File, function: ast.FunctionDef) -> bool:
    text = "\n".join(file.lines[function.lineno - 1 : function.end_lineno])
    return _LOSS.search(text) is not None and _NOT_TRAINED.search(function.name) is None


def calls(file: File) -> Iterator[ast.Call]:
    inside = [(f.lineno, f.end_lineno or 0) for f in functions(file)]
    for call in file.calls:
        if any(first <= call.lineno <= last for first, last in inside):
            yield call


def named(call: ast.Call) -> str:
    """What is called: `log` of `torch.log(x)` and of `x.log()`."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(name):
            return name
    return ""


def subject(call: ast.Call) -> ast.expr | None:
    """What a torch function or method is about: `x` of `torch.log(x)` and of `x.log()`."""
    match call.func:
        case ast.Attribute(ast.Name("torch" | "F" | "th"), _) if call.args:
            return call.args[0]
        case ast.Attribute(value, _) if not isinstance(value, ast.Name) or value.id not in _MODULES:
            return value
    return None


_MODULES = frozenset({"torch", "F", "th", "np", "math", "nn", "self", "logger", "jnp", "tf"})


def bare(node: ast.expr) -> ast.expr | None:
    """`x` of `x + eps`, `x.clamp(min=eps)`, `max(x, 1)`."""
    match node:
        case ast.BinOp(left, ast.Add(), right) if _SMALL.search(ast.unparse(right)):
            return left
        case ast.BinOp(left, ast.Add(), right) if _SMALL.search(ast.unparse(left)):
            return right
        case ast.Call(ast.Name("max"), [a, ast.Constant()]):
            return a
        case ast.Call() if named(node) in {"clamp", "clamp_min", "clip"}:
            return subject(node)
    return None


def bare_in(*methods: str) -> Mutation:
    """The precaution under one of these functions goes."""

    def mutate(file: File) -> Iterator[tuple[int, list[Edit]]]:
        for call in calls(file):
            of = subject(call) if named(call) in methods else None
            yield from _without(file, call, of)

    return mutate


def bare_divisor(file: File) -> Iterator[tuple[int, list[Edit]]]:
    for function in functions(file):
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                yield from _without(file, node, node.right)


def _without(file: File, at: ast.expr, of: ast.expr | None) -> Iterator[tuple[int, list[Edit]]]:
    inner = bare(of) if of is not None else None
    if of is None or inner is None:
        return
    edit = file.replaced(of, f"({ast.unparse(inner)})")
    if edit:
        yield at.lineno, [edit]


def attached(names: re.Pattern[str]) -> Mutation:
    """`target = f(x).detach()` loses its detach; so does `target.detach()` in a loss."""

    def mutate(file: File) -> Iterator[tuple[int, list[Edit]]]:
        for call in calls(file):
            match call.func:
                case ast.Attribute(value, "detach"):
                    said = f"{ast.unparse(value)} {_assigned(file, call)}"
                    edit = file.replaced(call, f"({ast.unparse(value)})")
                    if edit and any(names.search(w) for w in re.findall(r"\w+", said)):
                        yield call.lineno, [edit]

    return mutate


def _assigned(file: File, node: ast.AST) -> str:
    """The name that a whole statement gives to this value."""
    line = getattr(node, "lineno", 0)
    for statement in ast.walk(file.tree):
        if isinstance(statement, ast.Assign) and statement.lineno == line:
            return ast.unparse(statement.targets[0])
    return ""


def recorded_target(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`with torch.no_grad():` around a target goes, where the loss is in the same function."""
    for function in functions(file):
        for node in ast.walk(function):
            if not isinstance(node, ast.With) or len(node.items) != 1:
                continue
            context = node.items[0].context_expr
            made = [ast.unparse(s.targets[0]) for s in node.body if isinstance(s, ast.Assign)]
            if ast.unparse(context) not in ("torch.no_grad()", "th.no_grad()"):
                continue
            edit = file.replaced(context, ast.unparse(context).replace("no_grad", "enable_grad"))
            if (
                edit
                and any(_TARGET.search(name) for name in made)
                and _has_loss_after(function, node)
            ):
                yield node.lineno, [edit]


def _has_loss_after(function: ast.FunctionDef, node: ast.With) -> bool:
    after = (n for n in ast.walk(function) if isinstance(n, ast.Assign))
    end = node.end_lineno or 0
    return any(n.lineno > end and "loss" in ast.unparse(n.targets[0]) for n in after)


def squashed_first(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """A sigmoid before a loss on logits, a softmax before a cross entropy."""
    for call in calls(file):
        function = {
            "binary_cross_entropy_with_logits": "torch.sigmoid({})",
            "cross_entropy": "torch.softmax({}, dim=1)",
        }.get(named(call))
        if function and len(call.args) >= 2 and ast.unparse(call.func).startswith(("F.", "nn.")):
            edit = file.replaced(call.args[0], function.format(ast.unparse(call.args[0])))
            if edit:
                yield call.lineno, [edit]


def logits_to_nll(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """The log_softmax before nll_loss goes: in the call, or where the network of the same file ends."""
    text = "\n".join(file.lines)
    if "nll_loss" not in text and "NLLLoss" not in text and "CTCLoss" not in text:
        return
    for call in file.calls:
        of = subject(call) if named(call) == "log_softmax" else None
        edit = file.replaced(call, f"({ast.unparse(of)})") if of is not None else None
        if edit and text.count("log_softmax(") == 1:
            yield call.lineno, [edit]


def over_the_batch(file: File) -> Iterator[tuple[int, list[Edit]]]:
    for call in calls(file):
        if named(call) not in {"softmax", "log_softmax"}:
            continue
        for keyword in call.keywords:
            if keyword.arg == "dim" and ast.unparse(keyword.value) in {"-1", "1"}:
                edit = file.replaced(keyword.value, "0")
                if edit:
                    yield call.lineno, [edit]


def unsqueezed(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`(B, 1)` is compared with `(B,)`."""
    for call in calls(file):
        if not named(call).startswith(_COMPARED):
            continue
        for given in call.args[:2]:
            match given:
                case ast.Call(ast.Attribute(value, "squeeze" | "flatten")):
                    edit = file.replaced(given, ast.unparse(value))
                    if edit:
                        yield call.lineno, [edit]


def unshifted(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """`logits[..., :-1, :]` against `labels[..., 1:]`: neither is shifted any more."""
    for function in functions(file):
        cut: dict[str, list[ast.Subscript]] = {"logits": [], "labels": []}
        for node in ast.walk(function):
            if isinstance(node, ast.Subscript):
                text = ast.unparse(node)
                if re.fullmatch(r"[\w.]*logits\[(\.\.\., |:, ):-1(, :)?\]", text):
                    cut["logits"].append(node)
                elif re.fullmatch(r"[\w.]*(labels|targets?|input_ids)\[(\.\.\., |:, )1:\]", text):
                    cut["labels"].append(node)
        if all(len(nodes) == 1 for nodes in cut.values()):
            nodes = [cut["logits"][0], cut["labels"][0]]
            edits = [file.replaced(n, ast.unparse(n.value)) for n in nodes]
            if None not in edits and nodes[0].lineno != nodes[1].lineno:
                yield nodes[0].lineno, [e for e in edits if e is not None]


def autograd_functions(file: File, method: str) -> Iterator[ast.FunctionDef]:
    for cls in ast.walk(file.tree):
        if isinstance(cls, ast.ClassDef):
            if any(ast.unparse(b).split(".")[-1] == "Function" for b in cls.bases):
                for node in cls.body:
                    if isinstance(node, ast.FunctionDef) and node.name == method:
                        yield node


def kept_on_ctx(file: File) -> Iterator[tuple[int, list[Edit]]]:
    for function in autograd_functions(file, "forward"):
        given = {a.arg for a in function.args.args[1:]}
        for statement in ast.walk(function):
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
                continue
            call = statement.value
            names = [a.id for a in call.args if isinstance(a, ast.Name)]
            if named(call) == "save_for_backward" and names and set(names) & given:
                if len(names) == len(call.args):
                    text = "; ".join(f"ctx.{n} = {n}" for n in names)
                    edit = file.replaced(call, text)
                    if edit:
                        yield call.lineno, [edit]


def gradient_dropped(file: File) -> Iterator[tuple[int, list[Edit]]]:
    for function in autograd_functions(file, "backward"):
        returns = [n for n in ast.walk(function) if isinstance(n, ast.Return)]
        for node in returns if len(returns) == 1 else ():
            if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
                fewer = ", ".join(ast.unparse(e) for e in node.value.elts[:-1])
                edit = file.replaced(node.value, fewer)
                if edit and not any(isinstance(e, ast.Starred) for e in node.value.elts):
                    yield node.lineno, [edit]


def cut_off(file: File) -> Iterator[tuple[int, list[Edit]]]:
    """What a loss is computed from is detached, where the same function calls backward."""
    for function in functions(file):
        if ".backward(" not in ast.unparse(function):
            continue
        for node in ast.walk(function):
            match node:
                case ast.Assign(
                    [ast.Name("loss")], ast.Call(args=[ast.Name() as given, _, *_]) as call
                ):
                    edit = file.replaced(given, f"{given.id}.detach()")
                    if edit and re.search(r"criterion|loss|entropy", ast.unparse(call.func)):
                        yield node.lineno, [edit]


KINDS: tuple[tuple[str, str, Callable[[File], Iterator[tuple[int, list[Edit]]]]], ...] = (
    ("FL601", "the epsilon or clamp under a log goes", bare_in("log", "log2", "log10")),
    ("FL602", "the epsilon, clamp or max of a divisor goes", bare_divisor),
    ("FL603", "the epsilon or clamp under a sqrt goes", bare_in("sqrt", "rsqrt")),
    ("FL131", "a target loses its detach()", attached(_TARGET)),
    ("FL131", "no_grad around a target goes", recorded_target),
    ("FL023", "an advantage or return loses its detach()", attached(_ADVANTAGE)),
    ("FL136", "the prediction is detached before the loss", cut_off),
    ("FL606", "probabilities go to a loss on logits", squashed_first),
    ("FL612", "the log_softmax before nll_loss goes", logits_to_nll),
    ("FL609", "softmax over the batch", over_the_batch),
    ("FL139", "squeeze goes from one side of a regression loss", unsqueezed),
    ("FL012", "neither logits nor labels are shifted", unshifted),
    ("FL901", "save_for_backward becomes attributes of ctx", kept_on_ctx),
    ("FL902", "backward returns one gradient less", gradient_dropped),
)


if __name__ == "__main__":
    mutations.MUTATIONS = KINDS
    mutations.TITLE = "Mutations of losses, targets and labels"
    sys.exit(mutations.main())
