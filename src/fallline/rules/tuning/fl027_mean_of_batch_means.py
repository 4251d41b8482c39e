"""FL027: an evaluation averages the means of batches of different size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, same
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["MeanOfBatchMeans"]

_LOSS = re.compile(
    r"loss|criterion|acc|error|(^|_)(mse|mae|iou|dice|ppl)(_|$)|score", re.IGNORECASE
)
_COUNTS = re.compile(r"correct|(^|_)(sum|total|count|num|hits)(_|$)", re.IGNORECASE)
_EVALUATES = re.compile(r"eval|valid|test|(^|_)val(_|$)|dev", re.IGNORECASE)


class MeanOfBatchMeans(Rule):
    code = "FL027"
    name = "mean-of-batch-means"
    severity = Severity.INFO
    what = "An evaluation adds up the mean loss of each batch and divides by the number of batches, although the last batch can be smaller."
    why = (
        "Each sample of a small last batch counts more than the others: with 10 batches of 64 and one of 1, that one sample has the weight of 64. The "
        "result also changes with the batch size, so two runs with different batch sizes cannot be compared to the last digit."
    )
    instead = (
        "Weigh each batch by its samples:\n\n"
        "```python\ntotal += loss.item() * len(targets)\nsamples += len(targets)\nmean = total / samples\n```"
    )
    tokens = (b"len(", b"mean(", b"+= 1")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for mean, kept in _means_of_lists(module):
            loop = _appending_loop(module, kept)
            if (
                loop is not None
                and _evaluates(module, loop)
                and not _all_equal(module, _source(loop))
            ):
                yield self.finding(
                    module.location(mean),
                    f"`{kept.id}` holds the means of batches, and the last batch can be smaller, so its samples count more than the others. "
                    "Multiply each by its number of samples, and divide by the number of all samples",
                )
        for division in [*module.all(ast.BinOp), *module.all(ast.AugAssign)]:
            match division:
                case ast.BinOp(
                    ast.Call(ast.Attribute(ast.Name() as total, "item"), []), ast.Div(), by
                ):
                    pass
                case ast.BinOp(ast.Name() as total, ast.Div(), by) | ast.AugAssign(
                    ast.Name() as total, ast.Div(), by
                ):
                    pass
                case _:
                    continue
            loader = _length_of(module, by)
            if loader is None and isinstance(by, ast.Name):
                loop = _summing_loop(module, total, None, counted=by.id)
                loader = _source(loop) if loop is not None else None
            else:
                loop = _summing_loop(module, total, loader) if loader is not None else None
            if loop is None or not _evaluates(module, loop) or _all_equal(module, loader):
                continue
            yield self.finding(
                module.location(division),
                f"`{total.id}` adds up the means of batches, and the last batch can be smaller, so its samples count more than the others. "
                "Multiply each by its number of samples, and divide by the number of all samples",
            )

    wrong = (
        """\
import torch
from torch import nn


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total_loss = 0.0
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        total_loss += loss.item()
    return total_loss / len(loader)  # FL027
""",
    )
    right = (
        """\
import torch
from torch import nn


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total_loss, correct, samples = 0.0, 0, 0
    for inputs, targets in loader:
        outputs = model(inputs)
        total_loss += nn.functional.cross_entropy(outputs, targets).item() * len(targets)
        summed_loss = nn.functional.cross_entropy(outputs, targets, reduction="sum").item()
        correct += (outputs.argmax(1) == targets).sum().item()
        samples += len(targets)
    return total_loss / samples, correct / len(loader.dataset), summed_loss


def train(model, loader, optimizer):
    running_loss = 0.0
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    return running_loss / len(loader)
""",
    )


def _length_of(module: Module, node: ast.expr) -> ast.expr | None:
    """`loader` of `len(loader)`, also through a name."""
    match values_of(module).origin(node):
        case ast.Call(ast.Name("len"), [(ast.Name() | ast.Attribute(ast.Name("self"))) as loader]):
            return loader
    return None


_MEANS = frozenset({"torch.stack", "torch.tensor", "torch.cat"})


def _means_of_lists(module: Module) -> Iterator[tuple[ast.expr, ast.Name]]:
    """`torch.stack(losses).mean()`, `numpy.mean(losses)`, `sum(losses) / len(losses)`: the whole and the list."""
    for call in module.calls_named({"mean", "fmean"}.__contains__):
        match call:
            case ast.Call(ast.Attribute(ast.Call(args=[ast.Name() as kept, *_]) as joined), []):
                if module.resolve(joined.func) in _MEANS:
                    yield call, kept
            case ast.Call(args=[ast.Name() as kept]):
                if (module.resolve(call.func) or "").startswith(("numpy.", "statistics.")):
                    yield call, kept
    for division in module.all(ast.BinOp):
        match division:
            case ast.BinOp(
                ast.Call(ast.Name("sum"), [ast.Name() as kept]),
                ast.Div(),
                ast.Call(ast.Name("len"), [ast.Name(other)]),
            ) if kept.id == other:
                yield division, kept


def _appending_loop(module: Module, kept: ast.Name) -> ast.For | None:
    """The loop in which `losses.append(loss.item())`."""
    for call in module.method_calls("append"):
        match call:
            case ast.Call(ast.Attribute(ast.Name(name)), [value]) if name == kept.id:
                loop = module.enclosing(call, ast.For)
                if module.scope(call) is module.scope(kept) and loop is not None:
                    return loop if _is_mean(module, value) else None
    return None


def _source(loop: ast.For) -> ast.expr:
    """`loader` of `for i, x in enumerate(tqdm(loader))`."""
    here: ast.expr = loop.iter
    while isinstance(here, ast.Call) and here.args:
        here = here.args[0]
    return here


def _summing_loop(
    module: Module, total: ast.Name, loader: ast.expr | None, counted: str = ""
) -> ast.For | None:
    """The loop over this loader, or the one that counts its turns, in which `total += loss.item()`."""
    scope = module.scope(total)
    for change in module.all(ast.AugAssign):
        match change:
            case ast.AugAssign(ast.Name(name), ast.Add(), value) if name == total.id:
                loop = module.enclosing(change, ast.For)
                mine = module.scope(change) is scope and change.lineno < total.lineno
                if not mine or loop is None:
                    continue
                if _counts(loop, counted) if loader is None else _is_over(loop, loader):
                    return loop if _is_mean(module, value) else None
    return None


def _counts(loop: ast.For, name: str) -> bool:
    """`batches += 1` in the loop."""
    for change in below(loop, ast.AugAssign):
        match change:
            case ast.AugAssign(ast.Name(counted), ast.Add(), ast.Constant(1)) if counted == name:
                return True
    return False


def _is_over(loop: ast.For, loader: ast.expr) -> bool:
    """`for x in loader`, `enumerate(loader)`, `tqdm(loader)`."""
    here: ast.expr = loop.iter
    while isinstance(here, ast.Call) and here.args and not same(here, loader):
        here = here.args[0]
    return same(here, loader)


def _is_mean(module: Module, value: ast.expr) -> bool:
    """`loss.item()`, `float(loss)`, `loss`: the mean of a batch by its name, not weighed and not a sum."""
    match value:
        case ast.Call(ast.Attribute(inner, "item" | "detach" | "cpu")) | ast.Call(
            ast.Name("float"), [inner]
        ):
            return _is_mean(module, inner)
        case ast.Name() if (part := values_of(module).unpacked(value)) is not None:
            given = values_of(module).result(*part)  # `loss, accuracy = self._batch(x, y)`
            return isinstance(given, ast.Call) and _is_mean(module, given)
        case ast.Name(name):
            if not _LOSS.search(name) or _COUNTS.search(name):
                return False
            made = values_of(module).origin(value)
            summed = isinstance(made, ast.Call) and _sums(module, made)
            return not summed
        case ast.Call():
            return bool(_LOSS.search(last_name(value))) and not _sums(module, value)
    return False


def _sums(module: Module, call: ast.Call) -> bool:
    how = module.argument(call, None, "reduction")
    if how is None:
        made = values_of(module).constructed(call.func)
        how = module.argument(made, None, "reduction") if made is not None else None
    return last_name(call) == "sum" or (how is not None and module.constant(how) != "mean")


def _evaluates(module: Module, loop: ast.For) -> bool:
    """By the name of its function or loader; and nothing in it trains."""
    function = module.function(loop)
    named = _EVALUATES.search(getattr(function, "name", "")) or _EVALUATES.search(
        module.segment(loop.iter)
    )
    trains = any(n.attr in {"backward", "zero_grad"} for n in below(loop, ast.Attribute))
    return bool(named) and not trains


def _all_equal(module: Module, loader: ast.expr | None) -> bool:
    """A loader in view with `drop_last=True` or a batch size of one."""
    made = values_of(module).built(loader) if loader is not None else None
    if not isinstance(made, ast.Call):
        return False
    dropped = module.argument(made, None, "drop_last")
    size = module.argument(made, 1, "batch_size")
    alone = last_name(made) == "DataLoader" and (size is None or module.number(size) == 1)
    return alone or (dropped is not None and module.constant(dropped) is True)
