"""What a framework does with a loss that it was handed."""

from __future__ import annotations

import ast

from fallline.api.call import Call
from fallline.api.gradients import backward
from fallline.api.paper import Paper
from fallline.api.values import Tensor

__all__ = ["COUNTERS", "call_at", "framework_backward"]

# Arguments that a loop counts up.
COUNTERS = frozenset(
    "step i idx batch_idx batch_index iteration it n_iter global_step current_step step_idx".split()
)


def call_at(node: ast.AST) -> Call:
    """A call that is not in the text, placed where `node` is."""
    call = ast.Call(ast.Name("backward", ast.Load()), [], [])
    return Call(ast.copy_location(call, node), [], {})


def framework_backward(paper: Paper, loss: Tensor, call: Call, framework: str) -> None:
    """The backward that a framework runs on a loss it was handed, placed where the loss was divided."""
    event = backward(paper, loss, call, framework)
    if loss.divided_at is not None:
        event.at = loss.divided_at
