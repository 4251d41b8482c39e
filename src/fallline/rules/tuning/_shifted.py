"""Labels that were shifted when they were made: in a batch under another name, in a dataset, in an array that is filled row by row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, written

__all__ = [
    "handed_over_shifted",
    "masked_one_too_far",
    "shifted_elsewhere",
    "shifted_for_a_loss_that_shifts",
    "stored_shifted",
]

_SHIFTED = re.compile(r"shift(ed)?_?(labels|targets)", re.IGNORECASE)
_LABELS = re.compile(r"label|target", re.IGNORECASE)
_SHIFTS_ITSELF = re.compile(r"(ForCausalLM|LMHeadModel|DoubleHeadsModel)$")
_PROMPT = re.compile(r"prompt|source|instruct|context|prefix|question|user", re.IGNORECASE)


def handed_over_shifted(module: Module) -> Iterator[ast.stmt]:
    """`batch["labels"] = batch.pop("shift_labels")`, and then `model(**batch).loss`."""
    # as long as the batch has both, the model takes the shifted ones as they are
    for taken in module.calls_by_last_name.get("pop", ()):
        statement = module.parent(taken)
        match statement:
            case ast.Assign([ast.Subscript(ast.Name(batch), ast.Constant("labels"))]):
                if _SHIFTED.search(module.segment(taken)) and _opened(module, statement, batch):
                    yield statement


def _opened(module: Module, statement: ast.stmt, batch: str) -> bool:
    """Whether a call in the same function takes this dict apart, and its loss is used."""
    scope = module.scope(statement)
    calls = [
        c
        for c in module.all(ast.Call)
        if module.scope(c) is scope
        and c.lineno > statement.lineno
        and any(k.arg is None and is_name(k.value, batch) for k in c.keywords)
    ]
    return bool(calls) and any(
        n.attr == "loss" and module.scope(n) is scope for n in module.all(ast.Attribute)
    )


def masked_one_too_far(module: Module) -> Iterator[ast.stmt]:
    """`labels = tokens[1:]`, and then as many of them masked as the prompt is long: the first answer token is lost."""
    for part in module.all(ast.Slice):
        match statement := module.parent(module.parent(part) or part):
            case ast.Assign(
                [ast.Subscript(ast.Name(name) as labels, ast.Slice(None, ast.expr() as end, None))],
                value,
            ) if part.upper is end and _LABELS.search(name) and _ignores(value):
                made = module.value(labels)
                if (
                    _from_second(made)
                    and _cut_before_last(module, made)
                    and _as_long_as_prompt(module, end)
                ):
                    yield statement


def _ignores(value: ast.expr) -> bool:
    return re.search(r"-100|ignore|mask", written(value), re.IGNORECASE) is not None


def _from_second(made: ast.expr) -> bool:
    match made:
        case ast.Subscript(ast.Name(), ast.Slice(ast.Constant(1), None, None)):
            return True
    return False


def _cut_before_last(module: Module, made: ast.expr) -> bool:
    """`inputs = tokens[:-1]` of the same tokens."""
    assert isinstance(made, ast.Subscript)
    wanted = f"{written(made.value)}[:-1]"
    return any(
        written(s) == wanted and module.scope(s) is module.scope(made)
        for s in module.all(ast.Subscript)
    )


def _as_long_as_prompt(module: Module, end: ast.expr, depth: int = 3) -> bool:
    """`len(prompt)`, through names and `min`, with nothing subtracted."""
    match module.value(end):
        case ast.Call(ast.Name("len"), [of]):
            return _PROMPT.search(written(of)) is not None
        case ast.Call(ast.Name("min"), given) if depth:
            return any(_as_long_as_prompt(module, g, depth - 1) for g in given)
    return False


def stored_shifted(module: Module) -> Iterator[ast.stmt]:
    """`labels[i, :len(x) - 1] = x[1:]` beside `ids[i, :len(x)] = x`, in a file whose model shifts the labels it gets."""
    if not any(_SHIFTS_ITSELF.search(n) for n in module.imports.values()):
        return
    for statement in module.all(ast.Assign):
        match statement:
            case ast.Assign(
                [ast.Subscript(ast.Name(name), where)], ast.Subscript(source, index)
            ) if _LABELS.search(name):
                if (
                    _ends_one_early(where)
                    and _starts_at_one(index)
                    and _stored_whole(module, statement, source)
                ):
                    if _given_to_model(module, name):
                        yield statement


def _last(index: ast.expr) -> ast.expr:
    return index.elts[-1] if isinstance(index, ast.Tuple) and index.elts else index


def _ends_one_early(index: ast.expr) -> bool:
    match _last(index):
        case ast.Slice(
            None,
            ast.BinOp(op=ast.Sub(), right=ast.Constant(1))
            | ast.UnaryOp(ast.USub(), ast.Constant(1)),
            None,
        ):
            return True
    return False


def _starts_at_one(index: ast.expr) -> bool:
    match _last(index):
        case ast.Slice(ast.Constant(1), None, None):
            return True
    return False


def _stored_whole(module: Module, statement: ast.stmt, source: ast.expr) -> bool:
    """The same tokens are stored or passed unshifted: `ids[i, :len(x)] = x`."""
    text, scope = written(source), module.scope(statement)
    return any(
        isinstance(s.targets[0], ast.Subscript)
        and written(s.value) == text
        and module.scope(s) is scope
        for s in module.all(ast.Assign)
    )


def _given_to_model(module: Module, name: str) -> bool:
    """Whether a model is called with something of that name."""
    return any(
        re.search(r"model$", last_name(call))
        and any(is_name(a, name) for a in [*call.args, *(k.value for k in call.keywords)])
        for call in module.all(ast.Call)
    )


_LOSS_THAT_SHIFTS = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration)$")


def _loss_shifts(module: Module, cls: ast.ClassDef) -> bool:
    """What `self.loss_function` is of a model of transformers: the one its `self.loss_type` names, else the one for its class."""
    for statement in below(cls, ast.Assign):
        match statement:
            case ast.Assign([ast.Attribute(ast.Name("self"), "loss_type")], named):
                kind = module.value(named)
                said = kind.value if isinstance(kind, ast.Constant) else None
                return isinstance(said, str) and _LOSS_THAT_SHIFTS.search(said) is not None
            case ast.Assign([ast.Attribute(ast.Name("self"), "loss_function")]):
                return False  # its own
    return _LOSS_THAT_SHIFTS.search(cls.name) is not None


def shifted_for_a_loss_that_shifts(module: Module) -> Iterator[ast.expr]:
    """`self.loss_function(logits, labels[:, 1:])` in a model of transformers, whose loss function for such classes shifts the labels.

    So does an encoder-decoder that feeds its decoder with the labels shifted right: they are in step with the logits already.
    """
    for call in module.method_calls("loss_function"):
        cls, function = module.class_(call), module.function(call)
        if cls is None or function is None or not _loss_shifts(module, cls):
            continue
        if module.argument(call, None, "shift_labels") is not None:
            continue
        labels = module.argument(call, 1, "labels")
        cut = _cut(module, labels) if labels is not None else None
        if cut is not None:
            yield cut
        elif labels is not None and _fed_to_the_decoder(module, cls, labels):
            yield call


def _cut(module: Module, node: ast.expr) -> ast.Subscript | None:
    """`labels[..., 1:]` behind a name, `.contiguous()`, `.view(-1)`, `.to(device)`."""
    for _ in range(8):
        found = values_of(module).origin(node)
        match found:
            case ast.Subscript(slice=ast.Tuple([*_, ast.Slice(ast.Constant(1), None)])):
                return found
            case ast.Subscript(slice=ast.Slice(ast.Constant(1), None)):
                return found
            case ast.Call(
                ast.Attribute(inner, "contiguous" | "view" | "to" | "reshape" | "flatten")
            ):
                node = inner
            case _:
                return None
    return None


def _fed_to_the_decoder(module: Module, cls: ast.ClassDef, labels: ast.expr) -> bool:
    """`decoder_input_ids = shift_tokens_right(labels, ...)` in the same class."""
    return any(
        "shift" in last_name(c)
        and "right" in last_name(c)
        and c.args
        and last_name(c.args[0]) == last_name(labels)
        for c in below(cls, ast.Call)
    )


def shifted_elsewhere(module: Module) -> Iterator[ast.Call]:
    """`loss_of(logits, targets)` in the validation of a file whose training calls `loss_of(logits, targets[..., 1:])`."""
    for name, calls in module.calls_by_last_name.items():
        same_loss = [c for c in calls if len(c.args) >= 2] if _LOSS_NAME.search(name) else []
        cut = {
            c.args[1].value.id
            for c in same_loss
            if isinstance(c.args[1], ast.Subscript)
            and isinstance(c.args[1].value, ast.Name)
            and _cut(module, c.args[1]) is c.args[1]
        }
        for call in same_loss:
            match call.args:
                case [ast.Name() as logits, ast.Name(targets), *_] if targets in cut:
                    if isinstance(values_of(module).origin(logits), ast.Call) and _whole(
                        module, call
                    ):
                        yield call


_LOSS_NAME = re.compile(r"cross_entropy|(^|_)loss(_fn|_function)?$", re.IGNORECASE)


def _whole(module: Module, call: ast.Call) -> bool:
    """Nothing is cut off the logits or the targets in this function."""
    function = module.function(call)
    return function is not None and not any(
        isinstance(s, ast.Slice)
        and (
            (isinstance(s.lower, ast.Constant) and s.lower.value == 1)
            or isinstance(s.upper, ast.UnaryOp)
        )
        for s in below(function, ast.Slice)
    )
