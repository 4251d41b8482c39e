"""FL019: adapters are attached and none of them learns."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rules._observed import Observed
from fallline.syntax import Module


class AdapterTrainsNothing(Observed):
    code = "FL019"
    name = "adapter-trains-nothing"
    severity = Severity.ERROR
    what = """\
Finds adapters (LoRA and similar) without a single parameter that gets a gradient or is in an optimizer."""
    why = """\
The run trains nothing, or only what was not meant to be trained. The loss moves a little with the data, so it can take hours to notice, and the saved adapter is the untrained one."""
    instead = """\
Attach the adapter first, then build the optimizer from the adapted model; load adapters to train with `is_trainable=True`.

```python
model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
```"""

    tokens = (
        b"get_peft_model",
        b"PeftModel",
    )
    wrong = (
        """\
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM"))  # FL019
for ids in torch.utils.data.DataLoader(torch.randint(100, (64, 33)), batch_size=8):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        """\
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("gpt2")
model = PeftModel.from_pretrained(base, "adapter")  # FL019
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for ids in torch.utils.data.DataLoader(torch.randint(100, (64, 33)), batch_size=8):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )
    right = (
        """\
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("gpt2")
model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for ids in torch.utils.data.DataLoader(torch.randint(100, (64, 33)), batch_size=8):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.save_pretrained("adapter")
merged = PeftModel.from_pretrained(base, "adapter").merge_and_unload()
""",
        """\
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("gpt2")
model = PeftModel.from_pretrained(base, "adapter", is_trainable=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for ids in torch.utils.data.DataLoader(torch.randint(100, (64, 33)), batch_size=8):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls("peft.get_peft_model"):
            optimizer = _optimizer_before(module, call)
            if optimizer is not None:
                yield self.finding(
                    module.location(call),
                    f"The optimizer on line {optimizer.lineno} was built before the adapters, so it holds none of them and nothing is trained. "
                    "Build it from the adapted model",
                )
            frozen = _frozen_after(module, call)
            if frozen is not None:
                yield self.finding(
                    module.location(frozen),
                    f"All parameters are frozen here, after the adapters were attached (line {call.lineno}), so the adapters are frozen too and nothing of them is trained. "
                    "Freeze the base model before get_peft_model, which does it anyway",
                )
        for call in module.calls("peft.PeftModel.from_pretrained"):
            if (
                module.argument(call, None, "is_trainable") is None
                and not module.has_star(call)
                and _is_optimized(module, call)
            ):
                yield self.finding(
                    module.location(call),
                    "PeftModel.from_pretrained loads the adapter frozen, so training it changes nothing. Pass `is_trainable=True`",
                )

    def says(self, entry: dict[str, Any]) -> str:
        many = f"{entry['adapters']} adapter weights are attached"
        return {
            "frozen": f"{many}, but all of them are frozen. Load the adapter with `is_trainable=True`, or set `requires_grad`",
            "not optimized": f"{many}, but no optimizer holds any of them: it was built before the adapters. Build it from the adapted model",
            "merged": f"{many}, but they are merged into the base weights, so no gradient reaches them. Call `unmerge_adapter()` before training",
            "checkpointing": f"{many}, but gradient checkpointing cuts them off: the inputs of the frozen base need no gradient. "
            "Call `model.enable_input_require_grads()`, or checkpoint with `use_reentrant=False`",
        }.get(
            entry["why"],
            f"{many}, but the loss does not reach any of them: {entry.get('example')} got no gradient. Call the adapted model, not the base model",
        )


def _name(module: Module, call: ast.Call) -> str | None:
    """The name that the result is given."""
    match module.parent(call):
        case ast.Assign([ast.Name(name)]):
            return name
    return None


def _optimizers(module: Module, model: str, scope: ast.AST | None) -> Iterator[ast.Call]:
    """Optimizers over `model.parameters()` in one function."""
    for call in module.method_calls("parameters", "named_parameters"):
        match call.func:
            case ast.Attribute(ast.Name(name)) if name == model and module.scope(call) is scope:
                for up in module.parents(call):
                    if isinstance(up, ast.Call) and (module.resolve(up.func) or "").startswith(
                        "torch.optim."
                    ):
                        yield up


def _optimizer_before(module: Module, call: ast.Call) -> ast.Call | None:
    """An optimizer over the base model, above the call that adds the adapters, which nothing replaces below."""
    given = module.argument(call, 0, "model")
    if not isinstance(given, ast.Name):
        return None
    scope, own = module.scope(call), _name(module, call) or given.id
    made = [*_optimizers(module, given.id, scope), *_optimizers(module, own, scope)]
    if any(o.lineno > call.lineno for o in made):
        return None
    return next((o for o in made if o.lineno < call.lineno), None)


def _frozen_after(module: Module, call: ast.Call) -> ast.stmt | None:
    """`for p in model.parameters(): p.requires_grad = False`, or `model.requires_grad_(False)`, below the call, in a file that turns no adapter on again."""
    own, scope = _name(module, call), module.scope(call)
    tests = [module.segment(test).lower() for test in module.all(ast.Compare)]
    if own is None or any("lora" in t or "adapter" in t for t in tests):
        return None
    for later in (*module.all(ast.For), *module.all(ast.Expr)):
        if later.lineno < call.lineno or module.scope(later) is not scope:
            continue
        match later:
            case ast.For(ast.Name(each), ast.Call(ast.Attribute(of, "parameters"))) if _root(
                of
            ) == own and not _chosen(of):
                if any(_freezes(s, each) for s in later.body):
                    return later
            case ast.Expr(ast.Call(ast.Attribute(of, "requires_grad_"), [ast.Constant(False)])):
                if _root(of) == own and not _chosen(of):
                    return later
    return None


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _chosen(node: ast.expr) -> bool:
    """A part of the model, `model.embed_tokens`, not all of it."""
    return isinstance(node, ast.Attribute) and node.attr not in {"base_model", "model", "module"}


def _freezes(statement: ast.stmt, each: str) -> bool:
    match statement:
        case ast.Assign([ast.Attribute(ast.Name(name), "requires_grad")], ast.Constant(False)):
            return name == each
        case ast.Expr(
            ast.Call(ast.Attribute(ast.Name(name), "requires_grad_"), [ast.Constant(False)])
        ):
            return name == each
    return False


def _is_optimized(module: Module, call: ast.Call) -> bool:
    own = _name(module, call)
    return own is not None and any(
        o.lineno > call.lineno for o in _optimizers(module, own, module.scope(call))
    )
