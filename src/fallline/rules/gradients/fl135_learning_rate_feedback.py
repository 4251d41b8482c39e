"""FL135: a schedule is computed from the learning rate that it set itself, so it compounds."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, names_in
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["LearningRateFeedback"]

_TIME = re.compile(
    r"^(cur(rent)?_)?(global_)?(epochs?|steps?|iter(ation)?s?|i_?iter|it|t|i|n_iter|num_updates|last_epoch)$",
    re.IGNORECASE,
)
_RATE = frozenset({"lr", "learning_rate"})
_SETTINGS = frozenset({"config", "cfg", "args", "params", "logs", "stats", "hparams"})
_GROWS = frozenset({"cos", "exp", "pow", "sin", "log", "sqrt"})


class LearningRateFeedback(Rule):
    code = "FL135"
    name = "learning-rate-feedback"
    severity = Severity.ERROR
    what = "A learning-rate schedule multiplies the current learning rate, which it set itself the last time, by a factor that depends on the epoch or step."
    why = (
        "The factor is meant for the first learning rate. Applied to the current one it compounds: `lr * 0.95 ** epoch`, each epoch, is "
        "`lr * 0.95 ** (1 + 2 + 3 + ...)`. After 20 epochs the rate is thousands of times too small, and the loss just stops falling."
    )
    instead = (
        "Compute the rate from a constant:\n\n"
        "```python\nfor group in optimizer.param_groups:\n    group['lr'] = group['initial_lr'] * 0.95 ** epoch\n```\n\n"
        "or use a scheduler of torch (`ExponentialLR`, `LambdaLR`)."
    )
    references = ("https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",)
    tokens = (b'["lr"]', b"['lr']")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for statement, value in _rates_set(module):
            current = _current_rate(module, value)
            factor = _grows_with_time(module, value)
            if current is None or factor is None or _once(module, statement):
                continue
            yield self.finding(
                module.location(statement),
                f"The learning rate is set to the current one times `{module.segment(factor)[:60]}`, which is meant for the first one, so the factors of all "
                "earlier calls compound. Compute it from a constant such as `initial_lr`",
            )

    wrong = (
        SETUP
        + """
for epoch in range(20):
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * 0.95**epoch  # FL135
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        """\
import torch


def adjust_learning_rate(optimizer, epoch, total):
    for param_group in optimizer.param_groups:
        lr = param_group["lr"]
        lr = lr * (1 - epoch / total) ** 0.9
        param_group["lr"] = lr  # FL135
""",
        """\
import torch


def decay(optimizer, epoch):
    for param_group in optimizer.param_groups:
        param_group["lr"] *= 0.1 ** (epoch // 30)  # FL135
""",
    )
    right = (
        SETUP
        + """
for epoch in range(20):
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * 0.95**epoch
        group["lr"] = group["initial_lr"] * 0.5 ** (epoch // 5) if "initial_lr" in group else group["lr"]
    if epoch in (10, 15):
        for group in optimizer.param_groups:
            group["lr"] *= 0.1
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        """\
import torch


def adjust(optimizer, args, epoch):
    lr = args.lr * 0.1 ** (epoch // 30)
    for group in optimizer.param_groups:
        group["lr"] = lr


def of_a_configuration(optimizer, config, epoch):
    lr = config["model"]["lr"] * 0.5 ** (epoch // 10)
    for group in optimizer.param_groups:
        group["lr"] = lr


def exponential(optimizer, gamma):
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * gamma


def warm_up(optimizer, step, warmup):
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * (step + 1) / step
""",
    )

    least_changes = 6
    fall = 2.0  # times, in all

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            rates = [rate for rate, _ in groupby(row.lr for row in track.rows if row.lr)]
            stretches = (
                *filter(self._compounding, _falls(rates)),
                *filter(self._warming_up, _falls(rates, more_slowly=True)),
            )
            for falling in stretches:
                factors = _factors(falling)
                yield self.finding(
                    track.at,
                    f"The learning rate falls from {falling[0]:.3g} to {falling[-1]:.3g} in {len(factors)} changes, and the factor of each follows a schedule itself "
                    f"({factors[0]:.3g}, {factors[1]:.3g}, ... {factors[-1]:.3g}): it is applied to the current rate instead of the first one, so the factors compound. "
                    "Compute it from a constant such as `initial_lr`",
                    changes=len(factors),
                    first=falling[0],
                    last=falling[-1],
                    optimizer=track.optimizer,
                    rank=track.rank,
                )
                break

    def _compounding(self, rates: list[float]) -> bool:
        return self._is_long(rates) and _compounds(_factors(rates))

    def _warming_up(self, rates: list[float]) -> bool:
        """Times 1/40, 2/40, 3/40, ...: a linear warm-up that is applied to what it left."""
        return self._is_long(rates) and _grows_evenly(_factors(rates))

    def _is_long(self, rates: list[float]) -> bool:
        return len(rates) > self.least_changes and rates[0] > self.fall * rates[-1]


# What a factor would be where it is meant for the first rate, as a number that grows evenly with time.
_SCHEDULES: tuple[Callable[[float], float], ...] = (
    lambda factor: -math.log(factor),  # 0.95 ** epoch
    *(
        (lambda factor, p=p: 1 - factor ** (1 / p)) for p in (0.5, 0.9, 1.0, 2.0)
    ),  # (1 - epoch / epochs) ** power
    lambda factor: math.acos(2 * factor - 1),  # half a cosine
    lambda factor: 1 / factor - 1,  # 1 / (1 + decay * epoch)
)
_EXACT = 1e-6
_STARTS = 3  # epochs are counted from 0 or 1


def _factors(rates: list[float]) -> list[float]:
    return [now / before for before, now in pairwise(rates)]


def _falls(rates: list[float], *, more_slowly: bool = False) -> list[list[float]]:
    """The stretches in which the rate falls, and never more slowly than before: a warm-up comes before one, and one that counts batches begins again in each epoch.

    `more_slowly`: those in which it falls, and never faster than before.
    """
    found: list[list[float]] = []
    last = math.inf
    for before, now in pairwise(rates):
        factor = now / before
        if factor < 1:
            turns = factor < last - _EXACT if more_slowly else factor > last + _EXACT
            if turns or last >= 1:
                found.append([before])
            found[-1].append(now)
        last = factor
    return found


def _compounds(factors: list[float]) -> bool:
    """Whether the factors themselves are a schedule that begins at 1: those of a rate that follows one are not."""
    return any(_grows_evenly(list(map(f, factors))) for f in _SCHEDULES) or _in_levels(factors)


def _grows_evenly(numbers: list[float]) -> bool:
    """d, 2d, 3d, ..., or from a later one on."""
    for start in range(1, _STARTS + 1):
        step = numbers[-1] / (start + len(numbers) - 1)
        even = enumerate(numbers, start)
        if step > 0 and all(abs(number - n * step) <= _EXACT * number for n, number in even):
            return True
    return False


def _in_levels(factors: list[float]) -> bool:
    """0.1 several times in a row, then 0.01 several times: `0.1 ** (epoch // 30)`, in every epoch."""
    levels = [(level, len(list(same))) for level, same in groupby(round(-math.log(f), 9) for f in factors)]  # fmt: skip
    whole = levels if len(levels) < 3 else levels[:-1]
    return len(levels) > 1 and min(n for _, n in whole) > 1 and _grows_evenly([v for v, _ in levels])  # fmt: skip


def _rates_set(module: Module) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """`group["lr"] = value` and `group["lr"] *= value`, the latter as a product."""
    for statement in module.all(ast.Assign):
        match statement:
            case ast.Assign([target], value) if _is_rate(target):
                yield statement, value
    for change in module.all(ast.AugAssign):
        if _is_rate(change.target) and isinstance(change.op, ast.Mult):
            product = ast.BinOp(change.target, ast.Mult(), change.value)
            yield change, product


def _is_rate(node: ast.AST) -> bool:
    """`group["lr"]`, `optimizer.param_groups[0]["lr"]`: not `self.config["model"]["lr"]`, which nobody sets."""
    match node:
        case ast.Subscript(ast.Name(held), ast.Constant(str() as key)) if key in _RATE:
            return held not in _SETTINGS
        case ast.Subscript(ast.Subscript(groups), ast.Constant(str() as key)) if key in _RATE:
            return "group" in last_name(groups)
    return False


def _current_rate(module: Module, value: ast.expr) -> ast.expr | None:
    """The rate in force, as a factor of what it is set to, also through names: `lr = group["lr"]; lr = lr * ...`."""
    match value:
        case ast.BinOp(left, ast.Mult(), right):
            return _current_rate(module, left) or _current_rate(module, right)
        case ast.BinOp(left, ast.Div(), _):
            return _current_rate(module, left)
        case ast.Subscript() if _is_rate(value):
            return value
        case ast.Name():
            made = values_of(module).definition(value)
            return _current_rate(module, made) if isinstance(made, ast.expr) else None
    return None


def _grows_with_time(module: Module, value: ast.expr, depth: int = 0) -> ast.expr | None:
    """A factor that is a power, a cosine or the like of the time since the beginning: not the ratio of two of them."""
    match value:
        case ast.BinOp(left, ast.Mult() | ast.Div(), right):
            return _grows_with_time(module, left, depth) or _grows_with_time(module, right, depth)
        case ast.BinOp(_, ast.Pow(), _) if _has_time(module, value):
            return value
        case ast.Call(args=args) if last_name(value) in _GROWS and _has_time(module, *args):
            return value
        case ast.Name() if depth < 3:
            made = values_of(module).definition(value)
            return _grows_with_time(module, made, depth + 1) if isinstance(made, ast.expr) else None
        case ast.BinOp(_, ast.Add() | ast.Sub(), _):
            return next(
                (
                    n
                    for n in below(value, ast.Call)
                    if last_name(n) == "cos" and _has_time(module, *n.args)
                ),
                None,
            )
    return None


def _has_time(module: Module, *nodes: ast.AST) -> bool:
    named = names_in(*nodes) | {n.attr for node in nodes for n in below(node, ast.Attribute)}
    return any(_TIME.match(name) for name in named)


def _once(module: Module, statement: ast.stmt) -> bool:
    """Under a test for one moment, or of a scheduler's own recursion (`last_epoch`)."""
    for up in module.parents(statement):
        match up:
            case ast.If(test) if any(isinstance(n, ast.Eq | ast.In) for n in ast.walk(test)):
                return True
            case ast.FunctionDef(name="get_lr" | "_get_closed_form_lr"):
                return True
    return False
