"""FL708: loading casts an optimizer's state to the parameters' narrower type."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of, walk

__all__ = ["OptimizerStateCast"]

_OPTIMIZERS = ("torch.optim.Optimizer", "torch.optim.optimizer.Optimizer")
_HANDLES = frozenset(
    {"load_state_dict", "__setstate__", "_process_value_according_to_param_policy"}
)
_WIDE = frozenset({"torch.float32", "torch.float", "torch.float64"})


class OptimizerStateCast(Observed):
    code = "FL708"
    name = "optimizer-state-cast"
    severity = Severity.WARNING
    what = "An optimizer keeps its state in float32 for parameters in half precision, and loading a checkpoint casts that state to half precision."
    why = (
        "`Optimizer.load_state_dict` casts every floating-point state to the type of its parameter. Moments and master weights that were saved in "
        "float32 come back with 8 (bfloat16) or 11 (float16) significant bits: second moments below the smallest float16 become 0, and a resumed run "
        "takes different steps from one that was never stopped."
    )
    instead = (
        "Put the state back as it was saved, after loading:\n\n"
        "```python\ndef load_state_dict(self, state_dict):\n    super().load_state_dict(state_dict)\n"
        "    for number, saved in state_dict['state'].items():\n        parameter = self._parameters_in_order()[number]\n"
        "        self.state[parameter] |= {k: v.to(parameter.device) for k, v in saved.items() if torch.is_tensor(v)}\n```"
    )
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.load_state_dict.html",
    )
    tokens = (b"Optimizer",)

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for cls in module.all(ast.ClassDef):
            if not any(b.startswith("torch.optim.") for b in module.bases(cls)):
                continue
            defined = {s.name for s in methods_of(cls)}
            if defined & _HANDLES or not set(map(module.resolve, cls.bases)) & set(_OPTIMIZERS):
                continue
            place = next((s for s in walk(cls) if _keeps_wide_state(module, s)), None)
            if isinstance(place, ast.Assign):
                yield self.finding(
                    module.location(place),
                    f"{cls.name} keeps this state in float32 whatever the parameter's type, but load_state_dict casts it to that type: with half-precision "
                    "parameters a resumed run continues with rounded state. Override load_state_dict and put the saved tensors back",
                )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"Loading cast the optimizer's state `{entry['name']}` from {entry['saved']} to {entry['loaded']}, the type of its parameters, so the run continues "
            "with rounded state. Load it before the parameters are cast, or put the saved tensors back afterwards"
        )

    wrong = (
        """\
import torch


class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p, dtype=torch.float32)  # FL708
                state["velocity"].mul_(0.9).add_(p.grad.float())
                p.add_(state["velocity"].to(p.dtype), alpha=-group["lr"])
""",
    )
    right = (
        """\
import torch


class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                    state["step"] = torch.zeros((), dtype=torch.float32)
                state["velocity"].mul_(0.9).add_(p.grad)
                p.add_(state["velocity"], alpha=-group["lr"])


class Careful(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["master"] = p.detach().clone().float()

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["master"] = state["master"].float()
""",
    )


def _keeps_wide_state(module: Module, node: ast.AST) -> bool:
    """`state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)`, `state["master"] = p.float()`."""
    match node:
        case ast.Assign([ast.Subscript(held, ast.Constant(str() as key))], value):
            state = "state" in module.segment(held) and key not in {"step", "steps", "lr"}
            return state and _is_wide(module, value)
    return False


def _is_wide(module: Module, value: ast.expr) -> bool:
    """Float32 by force, and as large as the parameter."""
    calls = [n for n in below(value, ast.Call)]
    for call in calls:
        dtype = module.argument(call, None, "dtype")
        like = last_name(call) in {"zeros_like", "empty_like", "clone", "full_like"}
        if like and dtype is not None and module.resolve(dtype) in _WIDE:
            return True
        if last_name(call) == "float" and isinstance(call.func, ast.Attribute):
            return any(last_name(c) in {"clone", "detach", "zeros_like"} for c in calls)
    return False
