"""Mutations of evaluations, modes, checkpoints and modules: the kinds that `mutations.py` has no room for.

    python benchmarks/mutations_modes.py FOLDER ... [the options of mutations.py]

Read and judged as `mutations.py` does. Several kinds share a rule here, so mutants are drawn for each kind. An edit has to make a
mistake: an evaluation in train mode counts where the file also trains and the model is called in a loop, a state that is not saved
or restored where the other half (the load, the save) is in the same file, a list of losses that keeps its graphs where each round
of the loop makes an update.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

import mutation_kinds
import mutations
from mutation_kinds import Edit, File, Mutation

Edits = Iterator[tuple[int, list[Edit]]]
_EVALUATES = re.compile(
    r"eval|valid|(^|_)val(_|$)|test|predict|infer|generate|sample|extract", re.IGNORECASE
)
_CALLED = re.compile(r"\b(self\.)?(\w*(model|net|network|encoder|generator|policy))(\.\w+)?\(")


def _functions(file: File) -> Iterator[ast.FunctionDef]:
    yield from (n for n in ast.walk(file.tree) if isinstance(n, ast.FunctionDef))


def _loops(node: ast.AST) -> list[ast.For | ast.While]:
    return [n for n in ast.walk(node) if isinstance(n, ast.For | ast.While)]


def _text(file: File, node: ast.stmt | ast.expr) -> str:
    """Whole lines: what is beside a node on them does not matter to the questions asked here."""
    return "\n".join(file.lines[node.lineno - 1 : node.end_lineno])


def _runs_model(file: File, function: ast.FunctionDef) -> bool:
    """A loop in here calls something that is named like a model."""
    bodies = (s for loop in _loops(function) for s in loop.body)
    return any(_CALLED.search(_text(file, s)) for s in bodies)


def decorator_removed(file: File) -> Edits:
    """`@torch.no_grad()` goes from a function that runs a model in a loop."""
    for function in _functions(file):
        if not function.decorator_list or not _EVALUATES.search(function.name):
            continue
        if ".eval()" not in _text(file, function) or not _runs_model(file, function):
            continue
        for decorator in function.decorator_list:
            text = ast.unparse(decorator)
            if text in ("torch.no_grad()", "torch.inference_mode()"):
                line = decorator.lineno
                yield function.lineno, [(line, line, [""])]


def eval_removed(file: File) -> Edits:
    """`model.eval()` goes from an evaluation of the file that trains it."""
    text = "\n".join(file.lines)
    if ".backward(" not in text or ".step(" not in text:
        return
    for function in _functions(file):
        if not _EVALUATES.search(function.name) or not _runs_model(file, function):
            continue
        text = _text(file, function)
        if not ("no_grad" in text or function.decorator_list) or "backward" in text:
            continue
        rests = [
            block[index]
            for block, index, _ in file.statements("eval")
            if function.lineno < block[index].lineno <= (function.end_lineno or 0)
        ]
        if len(rests) == 1:
            yield rests[0].lineno, [file.without(rests[0])]


def _saved(file: File) -> Iterator[tuple[ast.Dict, int, str]]:
    """The entries of dictionaries that are states of a file for resuming: `"optimizer": optimizer.state_dict()`."""
    for node in ast.walk(file.tree):
        if (
            isinstance(node, ast.Dict)
            and sum(".state_dict()" in ast.unparse(v) for v in node.values) > 1
        ):
            for index, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
                if isinstance(key, ast.Constant) and ".state_dict()" in ast.unparse(value):
                    yield node, index, ast.unparse(value)


def not_saved(file: File) -> Edits:
    """The optimizer's, scheduler's or scaler's state goes from a dictionary that is saved, and its load with it."""
    text = "\n".join(file.lines)
    if "torch.save" not in text or "torch.load" not in text:
        return
    for node, index, value in _saved(file):
        receiver = value.removesuffix(".state_dict()")
        if not re.search(r"opt|sched|scaler", receiver) or "ema" in receiver:
            continue
        loads = [b[i] for b, i, r in file.statements("load_state_dict") if r == receiver]
        key, entry = node.keys[index], node.values[index]
        if not loads or key is None or key.lineno != entry.end_lineno:
            continue
        line = file.lines[key.lineno - 1]
        rest = re.sub(r"^\s*,?", "", line.encode()[entry.end_col_offset or 0 :].decode())
        new = line.encode()[: key.col_offset].decode() + rest
        edit = (key.lineno, key.lineno, [new])
        yield key.lineno, [edit, *(file.without(s) for s in loads)]


def not_restored(file: File) -> Edits:
    """The scheduler or the scaler is saved and no longer restored."""
    text = "\n".join(file.lines)
    if "torch.save" not in text or "torch.load" not in text:
        return
    for block, index, receiver in file.statements("load_state_dict"):
        if re.search(r"sched|scaler", receiver) and f"{receiver}.state_dict()" in text:
            yield block[index].lineno, [file.without(block[index])]


def kept_in_list(file: File) -> Edits:
    """`losses.append(loss.item())` or `log["loss"] = loss.item()` keeps the graph."""
    loops = _loops(file.tree)
    for call in file.calls:
        around = [p for p in loops if p.lineno < call.lineno <= (p.end_lineno or 0)]
        inner = _text(file, max(around, key=lambda p: p.lineno)) if around else ""
        if ".backward(" not in inner or ".step(" not in inner:
            continue
        match call:
            case ast.Call(
                ast.Attribute(attr="append" | "update"),
                [*_, ast.Call(ast.Attribute(held, "item" | "detach"), []) as value],
            ) | ast.Call(
                ast.Attribute(attr="update"),
                [ast.Call(ast.Attribute(held, "item" | "detach"), []) as value, _],
            ):
                name = ast.unparse(held).rpartition(".")[2]
                edit = file.replaced(value, ast.unparse(held))
                if edit and "loss" in name:
                    yield call.lineno, [edit]


def modules_in_dict(file: File) -> Edits:
    """`self.heads = nn.ModuleDict({...})` becomes a plain dictionary; `nn.ModuleList()` that is filled becomes a list."""
    whole = "\n".join(file.lines)
    for node in ast.walk(file.tree):
        match node:
            case ast.Assign([ast.Attribute(ast.Name("self"))], ast.Call(func, args) as made):
                name = ast.unparse(func).rpartition(".")[2]
            case _:
                continue
        filled = f"{ast.unparse(node.targets[0])}.append(nn." in whole
        if name == "ModuleDict" and len(args) == 1 and isinstance(args[0], ast.Dict):
            edit = file.replaced(made, ast.unparse(args[0]))
        elif name == "ModuleList" and not args and filled:
            edit = file.replaced(made, "[]")
        else:
            continue
        if edit:
            yield node.lineno, [edit]


def parameter_plain(file: File) -> Edits:
    """`self.w = nn.Parameter(torch.randn(...))` becomes a tensor that requires a gradient."""
    for node in ast.walk(file.tree):
        match node:
            case ast.Assign(
                [ast.Attribute(ast.Name("self"))],
                ast.Call(func, [ast.Call(made, given, names)], []) as whole,
            ):
                pass
            case _:
                continue
        if ast.unparse(func).endswith("nn.Parameter") and re.match(
            r"torch\.(randn|zeros|ones|rand)$", ast.unparse(made)
        ):
            wants = ast.keyword("requires_grad", ast.Constant(True))
            edit = file.replaced(whole, ast.unparse(ast.Call(made, given, [*names, wants])))
            if edit:
                yield node.lineno, [edit]


def train_only_first(file: File) -> Edits:
    """`model.train()` after an evaluation inside the loop goes: what is evaluated there stays in eval mode."""
    text = "\n".join(file.lines)
    if ".backward(" not in text:
        return
    for block, index, receiver in file.statements("train"):
        before = [i for b, i, r in file.statements("eval") if b is block and r == receiver]
        if any(i < index for i in before):
            yield block[index].lineno, [file.without(block[index])]


def super_removed(file: File) -> Edits:
    """`super().__init__()` goes from a module that has layers."""
    for cls in (n for n in ast.walk(file.tree) if isinstance(n, ast.ClassDef)):
        if not any(ast.unparse(b) in ("nn.Module", "torch.nn.Module") for b in cls.bases):
            continue
        for node in ast.walk(cls):
            if isinstance(node, ast.Expr) and re.match(
                r"super\(.*\)\.__init__\(\)$", ast.unparse(node)
            ):
                if "nn." in _text(file, cls).partition("__init__")[2]:
                    yield node.lineno, [file.without(node)]


KINDS: tuple[tuple[str, str, Mutation], ...] = (
    ("FL401", ".item() is removed from a running sum of losses", mutation_kinds.loss_kept),
    ("FL401", ".item() is removed where losses are collected", kept_in_list),
    ("FL402", "no_grad is removed from an evaluation", mutation_kinds.recorded_evaluation),
    ("FL402", "@no_grad is removed from an evaluation", decorator_removed),
    ("FL701", "the optimizer, scheduler or scaler is neither saved nor restored", not_saved),
    ("FL702", "the optimizer is not restored", mutation_kinds.from_saved),
    ("FL702", "the scheduler or scaler is not restored", not_restored),
    ("FL801", "ModuleList becomes a plain list", mutation_kinds.plain_list),
    ("FL801", "ModuleDict or an empty ModuleList becomes a plain one", modules_in_dict),
    ("FL802", "super().__init__() is removed", super_removed),
    ("FL804", "model.train() is removed", mutation_kinds.eval_kept),
    ("FL804", "model.train() after an evaluation is removed", train_only_first),
    ("FL805", "F.dropout loses training=", mutation_kinds.call_without("F.dropout", "training")),
    ("FL807", "a Parameter becomes a tensor", parameter_plain),
    ("FL809", "model.eval() is removed from an evaluation", eval_removed),
)


if __name__ == "__main__":
    sys.exit(mutations.main(KINDS))
