"""Accumulation that a function says itself, by the name of the count at which it steps: whether anything divides, and where it clips."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.walked import walked_losses
from fallline.syntax import Module
from fallline.syntax.nodes import below, walk, written

__all__ = ["clipped_every_time", "never_divided"]

_COUNT = re.compile(
    r"(?i)(grad(ient)?s?_?)?accum\w*_?(steps|iters?|every|num|count|batches|freq)|grad_acc\w*|accumulate(_grad)?(_batches|_steps|_every)?$|iter_size|update_freq|micro_?batches"
)
# Who divides, or takes sums: anywhere in the file.
_DIVIDES = re.compile(
    r"(?i)/=?\s*\(?[\w.\[\]'\"]*(accum|iter_size|update_freq|micro|grad_acc)|(reduction\s*=\s*['\"]sum|size_average\s*=\s*False)|\.grad\b.{0,20}(/=|div|mul_)"
    r"|accelerat|deepspeed|fabric|Lightning|\.scale_grad|multiply_grads|1(\.0?)?\s*/\s*\w*accum|inv_accum|loss_scale|scale_loss|normali[sz]e_grad"
)


def never_divided(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """(the backward, the count as it is written) where nothing in the file divides."""
    text = module.source.text
    if ".backward(" not in text or not _COUNT.search(text) or _DIVIDES.search(text):
        return
    seen: set[ast.AST] = set()
    for walked in walked_losses(module):
        function = module.function(walked.backward)
        place = function or module.tree
        if place in seen or last_name(walked.backward) != "backward" or walked.backward.args:
            continue
        beside = [w for w in walked_losses(module) if module.function(w.backward) is function]
        # with a scaler or without: one loss, walked in one of several ways
        if {(w.loss, w.loop) for w in beside} != {(walked.loss, walked.loop)}:
            continue
        if any(_is_divided(w.backward) for w in beside):
            continue
        for count, _ in _steps_at(walked.loop):
            if not _is_one(module, count):
                seen.add(place)
                yield walked.backward, written(count)
                break


def _is_divided(backward: ast.Call) -> bool:
    return any(isinstance(n, ast.BinOp) for n in walk(backward.func))


def clipped_every_time(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """(the clip, the count as it is written): between the backward and the test of the count, and not under it."""
    text = module.source.text
    if "clip_grad" not in text or not _COUNT.search(text) or _FRAMEWORK.search(text):
        return
    seen: set[ast.AST] = set()
    for walked in walked_losses(module):
        for count, branch in _steps_at(walked.loop):
            if branch in seen or _is_one(module, count):
                continue
            seen.add(branch)
            for call in below(walked.loop, ast.Call):
                between = walked.backward.lineno < call.lineno < branch.lineno
                if "clip_grad_norm" in last_name(call) and between:
                    if not _under_another(module, call, walked.loop):
                        yield call, written(count)
                        break


_FRAMEWORK = re.compile(r"(?i)accelerat|deepspeed|fabric|Lightning|sync_gradients")


def _under_another(module: Module, call: ast.Call, loop: ast.AST) -> bool:
    """`if (i + 1) % k == 0: clip(...)`, in a test of its own."""
    for up in module.parents(call):
        if up is loop:
            return False
        if isinstance(up, ast.If) and _COUNT.search(written(up.test)):
            return True
    return True


def _steps_at(loop: ast.For | ast.While) -> Iterator[tuple[ast.expr, ast.If]]:
    """The counts in tests under which an optimizer steps, or that go on with the next micro-batch without a step."""
    steps = [c.lineno for c in below(loop, ast.Call) if last_name(c) == "step"]
    for branch in below(loop, ast.If):
        skips = isinstance(branch.body[-1], ast.Continue) and any(
            line > branch.lineno for line in steps
        )
        inside = any(last_name(c) == "step" for s in branch.body for c in below(s, ast.Call))
        if not inside and not skips:
            continue
        for compared in below(branch.test, ast.BinOp, ast.Compare):
            match compared:
                case ast.BinOp(_, ast.Mod(), count) if _COUNT.search(written(count)):
                    yield count, branch
                case ast.Compare(_, [ast.Eq() | ast.GtE()], [count]) if _COUNT.search(
                    written(count)
                ):
                    yield count, branch


def _is_one(module: Module, count: ast.expr) -> bool:
    return bool(module.constant(count) == 1)
