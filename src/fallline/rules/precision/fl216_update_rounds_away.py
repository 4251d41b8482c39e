"""FL216: parameters in half precision whose updates are smaller than half the distance to the next number."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.numbers_given import number_given
from fallline.flow.precision import FLOAT16, LOW, is_low
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module

__all__ = ["UpdateRoundsAway"]

_ADAMS = ("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.NAdam", "torch.optim.RAdam")
# Adam moves a weight by about the learning rate. Half the spacing at a weight of 0.02, the usual size of one.
_SPACING = {"torch.bfloat16": 2**-14, "torch.float16": 2**-17}
_OTHERS_KEEP_MASTERS = ("deepspeed", "apex", "accelerate", "bitsandbytes", "peft", "lightning", "pytorch_lightning", "torchao", "optimi")  # fmt: skip
_HALF = frozenset({"bfloat16", "float16"})


class UpdateRoundsAway(Rule):
    code = "FL216"
    name = "update-rounds-away"
    severity = Severity.WARNING
    what = "The parameters themselves are in bfloat16 or float16, and the learning rate is so small that most updates round to nothing."
    why = """\
A bfloat16 has 8 significant bits: near 0.02, the usual size of a weight, neighbouring numbers are 1.2e-4 apart, and near 1, where norm weights start, 7.8e-3.

Adam moves a weight by about the learning rate. An update below half that distance rounds back to the old value, every time: it does not add up over updates.
With a rate of 1e-5 most weights of a bfloat16 model never change, and the loss falls more slowly or not at all."""
    instead = """\
Keep the parameters in float32 and let autocast compute in half precision.

- `model = Model().to(device)` and `with torch.autocast("cuda", dtype=torch.bfloat16): ...`
- or an optimizer that keeps float32 copies of the parameters (DeepSpeed, FSDP's `MixedPrecision`), or that rounds stochastically."""
    tokens = (b"bfloat16", b"half", b"float16")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        used = set(module.imports.values())
        if any(u == o or u.startswith(o + ".") for u in used for o in _OTHERS_KEEP_MASTERS):
            return
        for call in module.calls(*_ADAMS):
            rate = number_given(module, module.argument(call, 1, "lr"))
            model = _model_of(module, call)
            if rate is None or rate <= 0 or model is None:
                continue
            low = next(
                (
                    t
                    for t in ("torch.bfloat16", "torch.float16")
                    if _is_half(module, model, call, t)
                ),
                None,
            )
            if low is not None and rate < _SPACING[low]:
                yield self.finding(
                    module.location(call),
                    f"The parameters of `{module.segment(model)}` are {low[6:]}. Near 0.02, neighbouring {low[6:]} numbers are more than twice this learning rate ({rate:g}) apart, "
                    "so most updates round to nothing. Keep the parameters in float32 and use autocast",
                )

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            still = _never_moved(track)
            if len(still) == 0:
                continue
            more = f" and {len(still) - 3} more" if len(still) > 3 else ""
            yield self.finding(
                track.at,
                f"{', '.join(still[:3])}{more}: these parameters are in half precision, have gradients, and did not move in {len(track.samples)} samples: their "
                "updates are smaller than the distance to the next representable number. Keep the parameters in float32 and use autocast",
                step=track.samples[-1].index,
                parameters=still[:16],
                count=len(still),
                samples=len(track.samples),
                optimizer=track.optimizer,
                rank=track.rank,
            )

    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1)).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)  # FL216
for update in range(20):
    inputs = torch.randn(16, 8, dtype=torch.bfloat16)
    loss = (model(inputs).float().squeeze(1) - inputs.float().sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
frozen = torch.nn.Linear(8, 8).to(torch.bfloat16).requires_grad_(False)
other = torch.nn.Linear(8, 1).bfloat16()
fast = torch.optim.AdamW(other.parameters(), lr=3e-3)
for update in range(20):
    inputs = torch.randn(16, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (model(inputs).float().squeeze(1) - inputs.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    least_samples = 4


def _model_of(module: Module, call: ast.Call) -> ast.expr | None:
    """`model` of `AdamW(model.parameters(), ...)`."""
    match module.argument(call, 0, "params"):
        case ast.Call(ast.Attribute((ast.Name() | ast.Attribute()) as model, "parameters")):
            return model
    return None


def _is_half(module: Module, model: ast.expr, optimizer: ast.Call, kind: str) -> bool:
    """Made so, loaded so, or cast by a statement before the optimizer."""
    types = FLOAT16 if kind == "torch.float16" else LOW - FLOAT16
    made = values_of(module).origin(model)
    if isinstance(made, ast.Call):
        told = module.argument(made, None, "torch_dtype", "dtype")
        if last_name(made).startswith("from_") and told is not None:
            return module.resolve(module.value(told)) in types
        if is_low(module, made, types):
            return True
    if not isinstance(model, ast.Name):
        return False
    for statement in module.all(ast.Expr):
        match statement.value:
            case ast.Call(ast.Attribute(ast.Name(name), "half" | "bfloat16" | "to")) as cast if (
                name == model.id
            ):
                if (
                    module.scope(statement) is module.scope(optimizer)
                    and cast.lineno < optimizer.lineno
                ):
                    if is_low(module, cast, types):
                        return True
    return False


def _never_moved(track: Any) -> list[str]:
    """Half-precision parameters that had a gradient and the same values in every sample."""
    samples = [s for s in track.samples if s.layout is track.samples[-1].layout]
    if len(samples) < UpdateRoundsAway.least_samples or not any(r.lr for r in track.rows):
        return []
    parameters = samples[-1].layout.parameters
    still = [p.dtype in _HALF for p in parameters]
    if not any(still):
        return []
    for sample in samples:
        pairs = zip(sample.column("ratio"), sample.column("norm"), strict=True)
        still = [
            was and ratio == 0 and norm > 0 for was, (ratio, norm) in zip(still, pairs, strict=True)
        ]
    return [p.name for p, stays in zip(parameters, still, strict=True) if stays]
