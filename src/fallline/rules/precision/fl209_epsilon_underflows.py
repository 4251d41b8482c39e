"""FL209: an explicit epsilon that is zero in float16."""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.precision import is_low
from fallline.rule import Rule
from fallline.syntax import Module

_WITH_EPS = {"torch.nn.functional.normalize": 3, "torch.nn.functional.cosine_similarity": 3}
# fused Adam adds its epsilon in float32
_ADAMS = tuple(
    f"torch.optim.{n}" for n in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad")
)


class EpsilonUnderflows(Rule):
    code = "FL209"
    name = "epsilon-underflows"
    severity = Severity.ERROR
    what = """\
An epsilon is added to (or is the lower bound of) a float16 value, and is zero in float16.

float16 has no number between 0 and 6e-8; anything up to 3e-8 is rounded to 0. bfloat16 and float32 have no such problem."""
    why = """\
The epsilon guards nothing: `log(0 + 1e-8)` is `-inf` and `1 / (0 + 1e-8)` is `inf` in float16.

The same constant works in float32, so the code passes its tests and fails in half precision."""
    instead = """\
Use an epsilon that float16 can hold (1e-4 to 1e-6), or compute this part in float32.

```python
torch.log(p.float() + 1e-8)
p.clamp_min(1e-6).log()
```"""
    facts = ("half-ranges", "epsilon-vanishes-in-fp16", "normalize-in-fp16")
    tokens = (b"half", b"float16", b"autocast")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for node, epsilon, value in _epsilons(module):
            number = module.number(epsilon)
            if number is None or not _is_zero_in_half(number) or not is_low(module, value):
                continue
            yield self.finding(
                module.location(node),
                f"{number:g} is 0 in float16, so this epsilon guards nothing. Use at least 1e-6, or compute in float32 with .float()",
                epsilon=number,
            )
        for call in module.calls(*_ADAMS):
            number = module.number(module.argument(call, None, "eps"))
            if number is not None and _is_zero_in_half(number) and _steps_half(module, call):
                yield self.finding(
                    module.location(call),
                    f"eps={number:g} is 0 in float16, and the parameters of this optimizer are float16: a zero gradient becomes 0 / 0. "
                    "Use at least 1e-6, or keep the parameters in float32",
                    epsilon=number,
                )

    wrong = (
        """\
import torch

probabilities = torch.rand(8, 4).half()
loss = -torch.log(probabilities + 1e-8).mean()  # FL209
""",
        """\
import torch
import torch.nn.functional as F

EPS = 1e-8


def unit(x: torch.Tensor) -> torch.Tensor:
    x = x.to(torch.float16)
    return F.normalize(x, dim=-1, eps=EPS)  # FL209


print(unit(torch.zeros(2, 4)))
""",
        """\
import torch

queries, keys = torch.randn(4, 8), torch.randn(4, 8)
with torch.autocast("cuda", dtype=torch.float16):
    match = torch.sigmoid(queries @ keys.t())
    loss = -(match + 1e-8).log().mean()  # FL209
""",
        """\
import torch

model = torch.nn.Linear(8, 2).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)  # FL209
""",
    )
    right = (
        # float32
        """\
import torch

probabilities = torch.rand(8, 4)
loss = -torch.log(probabilities + 1e-8).mean()
""",
        # cast before the epsilon
        """\
import torch

probabilities = torch.rand(8, 4).half()
loss = -torch.log(probabilities.float() + 1e-8).mean()
""",
        # large enough
        """\
import torch

probabilities = torch.rand(8, 4).half()
loss = -torch.log(probabilities + 1e-6).mean()
""",
        # bfloat16 has float32's range
        """\
import torch

probabilities = torch.rand(8, 4).bfloat16()
loss = -torch.log(probabilities + 1e-8).mean()
""",
        # softmax is float32 under CUDA autocast
        """\
import torch

queries, keys = torch.randn(4, 8), torch.randn(4, 8)
with torch.autocast("cuda", dtype=torch.float16):
    match = torch.softmax(queries @ keys.t(), dim=-1)
    loss = -(match + 1e-8).log().mean()
""",
    )


def _is_zero_in_half(number: float) -> bool:
    return 0 < abs(number) < 1 and struct.unpack("e", struct.pack("e", number))[0] == 0.0


def _epsilons(module: Module) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """(where, the epsilon, the value that it guards)."""
    for node in module.all(ast.BinOp):
        if isinstance(node.op, ast.Add):
            yield node, node.right, node.left
            yield node, node.left, node.right
    for call in module.method_calls("clamp", "clamp_", "clamp_min", "clamp_min_", "add", "add_"):
        assert isinstance(call.func, ast.Attribute)
        bound = module.argument(call, 0, "min")
        if bound is not None and module.resolve(call.func) is None:
            yield call, bound, call.func.value
    for call in module.calls("torch.clamp", "torch.clamp_min"):
        bound = module.argument(call, 1, "min")
        if bound is not None and call.args:
            yield call, bound, call.args[0]
    for name, position in _WITH_EPS.items():
        for call in module.calls(name):
            bound = module.argument(call, position, "eps")
            if bound is not None and call.args:
                yield call, bound, call.args[0]


def _steps_half(module: Module, call: ast.Call) -> bool:
    """The parameters are those of a model that is made half where it is made, in this file."""
    held = module.argument(call, 0, "params")
    fused = module.constant(module.argument(call, None, "fused"))
    if (
        fused is True
        or not isinstance(held, ast.Call)
        or not isinstance(held.func, ast.Attribute)
        or held.func.attr != "parameters"
    ):
        return False
    model = module.value(held.func.value)
    return isinstance(model, ast.Call) and is_low(module, model)
