"""FL605: softmax, then log, then pick: the fused operation taken apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Edit, Finding, Fix, Severity
from fallline.rule import Rule
from fallline.rules.numerics._layers import (
    Made,
    last_name,
    made_by,
    operations,
    receiver,
    self_similarity,
)
from fallline.rules.numerics._losses import in_loss
from fallline.rules.numerics._stable import log_of
from fallline.rules.numerics._values import same, values_of
from fallline.syntax import Editor, Module

_PICKS = frozenset(
    {
        "gather",
        "index_select",
        "diagonal",
        "diag",
        "take_along_dim",
        "take",
        "masked_select",
        "select",
    }
)
_KEEPS = frozenset(
    {
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "float",
        "contiguous",
        "flatten",
        "clone",
        "to",
        "double",
    }
)
_CLAMPS = frozenset({"clamp", "clamp_min", "clip", "add"})
_CLOSED = frozenset(
    {
        "torch.nn.functional.nll_loss",
        "torch.nn.functional.kl_div",
        "torch.nn.NLLLoss",
        "torch.nn.KLDivLoss",
    }
)
_PRODUCTS = frozenset({"mul", "multiply", "dot", "einsum"})


class HandWrittenCrossEntropy(Rule):
    code = "FL605"
    name = "hand-written-cross-entropy"
    severity = Severity.WARNING
    what = "Looks for softmax followed by log and by a pick or a weighted sum over classes, in any order."
    why = """\
A softmax can be exactly 0 in float32 (logits 104 apart, in float16 18), and then the log is -inf.

With an epsilon or a clamp the loss stays finite but flat: a badly wrong sample gets no gradient, the one that needs it most.
The fused operation subtracts the largest logit first and never leaves log space: it gives the exact loss for logits of ±10,000."""
    instead = """\
Give the logits to the fused operation.

- `F.cross_entropy(logits, targets)`, also with class probabilities as targets and with `label_smoothing`
- where the log-probabilities themselves are needed (focal loss, policy gradients): `F.log_softmax(logits, dim)`"""
    fix_safety = "Safe: log_softmax is the log of the softmax, without underflow. An epsilon in between is dropped."
    facts = ("cross-entropy-is-stable",)
    tokens = (b"softmax", b"Softmax", b"exp(")
    wrong = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = 500 * torch.randn(16, 8), torch.randint(0, 5, (16,))
probs = F.softmax(model(inputs), dim=1)
loss = -torch.log(probs[torch.arange(16), targets]).mean()  # FL605
optimizer.zero_grad()
loss.backward()
optimizer.step()
""",
        """\
import torch


def soft_cross_entropy(logits, soft_targets):
    log_probs = torch.log(torch.softmax(logits, dim=-1) + 1e-8)  # FL605
    return -(soft_targets * log_probs).sum(dim=-1).mean()


soft_cross_entropy(torch.randn(4, 3, requires_grad=True), torch.full((4, 3), 1 / 3)).backward()
""",
        """\
import torch
from torch import nn


class PolicyLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=1)

    def forward(self, logits, actions, advantages):
        probs = self.softmax(logits)
        chosen = probs.gather(1, actions.unsqueeze(1)).squeeze(1)
        return -(chosen.log() * advantages).mean()  # FL605


PolicyLoss()(200 * torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0]), torch.ones(4)).backward()
""",
        """\
import torch


def contrastive_loss(images, texts, temperature=0.01):
    similarity = images @ texts.T / temperature
    exp_sim = torch.exp(similarity)
    probs = exp_sim / exp_sim.sum(dim=-1, keepdim=True)
    return -torch.log(probs.diagonal()).mean()  # FL605


contrastive_loss(torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)).backward()
""",
        """\
import torch
import torch.nn.functional as F


def train_step(model, inputs, targets):
    output = model(inputs).softmax(dim=1)
    loss = F.nll_loss(output.log(), targets)  # FL605
    loss.backward()


train_step(torch.nn.Linear(4, 3), 500 * torch.randn(8, 4), torch.randint(0, 3, (8,)))
""",
    )
    right = (
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
inputs, targets = 500 * torch.randn(16, 8), torch.randint(0, 5, (16,))
F.cross_entropy(model(inputs), targets).backward()
""",
        """\
import torch
import torch.nn.functional as F


def focal_loss(logits, targets, gamma=2.0):
    log_probs = F.log_softmax(logits, dim=1).gather(1, targets.unsqueeze(1)).squeeze(1)
    probs = log_probs.exp()
    return -((1 - probs) ** gamma * log_probs).mean()


focal_loss(200 * torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])).backward()
""",
        """\
import torch


def beam_scores(model, tokens, width):
    with torch.no_grad():
        probs = torch.softmax(model(tokens), dim=-1)
    scores = torch.log(probs)
    return scores.topk(width, dim=-1)


print(beam_scores(torch.nn.Linear(4, 3), torch.randn(2, 4), 2))
""",
        """\
import torch


def attention(query, key, value, bias):
    weights = torch.softmax(query @ key.transpose(-2, -1) + torch.log(bias), dim=-1)
    return weights @ value


x = torch.randn(2, 3, 4, requires_grad=True)
attention(x, x, x, torch.ones(3)).sum().backward()
""",
        """\
import torch
import torch.nn.functional as F


def self_similarity_loss(embeddings, temperature=0.07):
    embeddings = F.normalize(embeddings, dim=-1)
    similarity = torch.matmul(embeddings, embeddings.T) / temperature
    probs = F.softmax(similarity, dim=-1)
    return -torch.log(probs.diagonal()).mean()  # the largest of its row: never below 1 / N


self_similarity_loss(torch.randn(4, 8, requires_grad=True)).backward()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in operations(module, "log"):
            of = receiver(module, call)
            if of is None or (module.resolve(call.func) is None and call.args):
                continue
            probabilities, picked = _peeled(module, of)
            logits = _logits(module, probabilities)
            if logits is None or _harmless(module, logits, of):
                continue
            if (picked or _weighted(module, call, probabilities)) and in_loss(module, call):
                yield self.finding(
                    module.location(call),
                    "A cross-entropy by hand: softmax, log, pick. It is -inf or flat where the fused operation is exact;"
                    " give the logits to F.cross_entropy or F.log_softmax",
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        of = receiver(module, call) if call is not None else None
        if call is None or of is None:
            return None
        probabilities, _ = _peeled(module, of)
        made = _softmax(module, probabilities)
        if made is None:
            return None
        moved = _moved(module, call, of, probabilities, made)
        if moved is not None:
            return Fix("Take the log where the softmax is: log_softmax", moved)
        stable = log_of(module, made, call)
        text = _rebuilt(module, of, probabilities, stable) if stable is not None else None
        if text is None:
            return None
        return Fix(f"Write `{' '.join(text.split())}`", (Editor(module).replace(call, text),))


def _moved(
    module: Module, call: ast.Call, of: ast.expr, probabilities: ast.expr, made: Made
) -> tuple[Edit, ...] | None:
    """`p = softmax(x)` used only in this log: make it `log_p = log_softmax(x)`, so that nothing is computed twice."""
    up = module.parent(made.call)
    if (
        made.module is not module
        or not isinstance(probabilities, ast.Name)
        or not isinstance(up, ast.Assign)
    ):
        return None
    name, scope = probabilities.id, module.scope(probabilities)
    if (
        not any(t is b for t in up.targets for b in module.bindings(name, scope))
        or len(up.targets) != 1
    ):
        return None
    uses = [n for n in module.all(ast.Name) if n.id == name and module.scope(n) is scope]
    other = f"log_{name}"
    if len(uses) != 2 or module.bindings(other, scope) or other in module.imports:
        return None
    text = _rebuilt(module, of, probabilities, other)
    stable = log_of(module, made, made.call)
    if text is None or stable is None:
        return None
    editor = Editor(module)
    return (
        editor.replace(up.targets[0], other),
        editor.replace(made.call, stable),
        editor.replace(call, text),
    )


def _peeled(module: Module, node: ast.expr) -> tuple[ast.expr, bool]:
    """The probabilities inside what the log is taken of, and whether some of them were picked on the way."""
    picked = False
    here = node
    for _ in range(10):
        found = values_of(module).follow(here)
        if isinstance(found, ast.arg):
            return here, picked
        inner: ast.expr | None = None
        if isinstance(found, ast.Subscript):
            if isinstance(values_of(module).follow(found.slice), ast.Compare):
                return here, False  # p[p > 0] takes care of zeros itself
            inner, picked = found.value, True
        elif (
            isinstance(found, ast.BinOp)
            and isinstance(found.op, ast.Add)
            and _epsilon(module, found.right)
        ):
            inner = found.left
        elif (
            isinstance(found, ast.BinOp)
            and isinstance(found.op, ast.Add)
            and _epsilon(module, found.left)
        ):
            inner = found.right
        elif isinstance(found, ast.Call):
            name = last_name(found)
            if name in _PICKS or name in _KEEPS or name in _CLAMPS:
                inner = receiver(module, found)
                picked = picked or name in _PICKS
            elif name == "sum":
                product = values_of(module).follow(receiver(module, found) or found)
                if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
                    side = product.left if _softmax(module, product.left) else product.right
                    inner, picked = side, True
        elif isinstance(found, ast.BinOp) and isinstance(found.op, ast.Div):
            exp, whole = _unpicked(module, found.left)
            inside = (
                receiver(module, exp)
                if isinstance(exp, ast.Call) and last_name(exp) == "exp"
                else None
            )
            picked = picked or whole or (inside is not None and _unpicked(module, inside)[1])
        if inner is None:
            return here, picked
        here = inner
    return here, picked


def _epsilon(module: Module, node: ast.expr) -> bool:
    number = module.number(node)
    return (number is not None and 0 < number < 0.1) or "eps" in module.segment(node).lower()


def _softmax(module: Module, node: ast.expr) -> Made | None:
    made = made_by(module, node)
    return made if made is not None and made.op == "softmax" else None


def _logits(module: Module, node: ast.expr) -> ast.expr | None:
    """What the softmax is taken of, also where it is written out as exp / sum(exp)."""
    made = _softmax(module, node)
    if made is not None:
        of = receiver(made.module, made.call)
        return of if of is not None else made.call
    found = values_of(module).follow(node)
    if not (isinstance(found, ast.BinOp) and isinstance(found.op, ast.Div)):
        return None
    top, _ = _unpicked(module, found.left)
    bottom = values_of(module).follow(found.right)
    if not (isinstance(top, ast.Call) and last_name(top) == "exp" and isinstance(bottom, ast.Call)):
        return None
    summed = receiver(module, bottom) if last_name(bottom) == "sum" else None
    whole = values_of(module).follow(summed) if summed is not None else None
    if not (isinstance(whole, ast.Call) and last_name(whole) == "exp"):
        return None
    above, below = receiver(module, top), receiver(module, whole)
    if above is None or below is None:
        return None
    return below if same(_unpicked(module, above)[0], _unpicked(module, below)[0]) else None


def _unpicked(module: Module, node: ast.expr) -> tuple[ast.AST, bool]:
    """The whole of which some entries are taken: `logits` of `logits[range(n), y]`."""
    here, picked = values_of(module).follow(node), False
    while True:
        inner: ast.expr | None = None
        if isinstance(here, ast.Subscript):
            inner = here.value
        elif isinstance(here, ast.Call) and last_name(here) in _PICKS | _KEEPS:
            inner = receiver(module, here)
        if inner is None:
            return here, picked
        here, picked = values_of(module).follow(inner), True


def _harmless(module: Module, logits: ast.expr, of: ast.expr) -> bool:
    return "diag" in module.segment(values_of(module).follow(of)) and self_similarity(
        module, logits
    )


def _weighted(module: Module, call: ast.Call, probabilities: ast.expr) -> bool:
    """Whether the log is later picked from, or multiplied by something other than the probabilities themselves."""
    return any(_picks(module, place, probabilities) for place in _places(module, call))


def _places(module: Module, call: ast.Call) -> Iterator[ast.expr]:
    """The expression itself and, where it is given a name, every use of that name."""
    yield call
    up = module.parent(call)
    while isinstance(up, ast.UnaryOp):
        up = module.parent(up)
    if isinstance(up, ast.Assign) and len(up.targets) == 1 and isinstance(up.targets[0], ast.Name):
        name, scope = up.targets[0].id, module.scope(call)
        for use in module.all(ast.Name):
            if (
                use.id == name
                and isinstance(use.ctx, ast.Load)
                and use.lineno > up.lineno
                and module.scope(use) is scope
            ):
                yield use


def _picks(module: Module, place: ast.expr, probabilities: ast.expr) -> bool:
    child: ast.AST = place
    for up in module.parents(place):
        if isinstance(up, ast.UnaryOp) or (isinstance(up, ast.Attribute) and up.value is child):
            child = up
            continue
        if isinstance(up, ast.Subscript):
            return up.value is child
        if isinstance(up, ast.BinOp) and isinstance(up.op, ast.Mult):
            other = up.right if up.left is child else up.left
            while isinstance(other, ast.UnaryOp):
                other = other.operand
            return module.number(other) is None and not _is_same_softmax(
                module, other, probabilities
            )
        if isinstance(up, ast.Call):
            name = last_name(up)
            if name in _PRODUCTS:
                factors = [
                    *up.args,
                    *([up.func.value] if isinstance(up.func, ast.Attribute) else []),
                ]
                return not any(
                    f is not child and _is_same_softmax(module, f, probabilities) for f in factors
                )
            if name in _PICKS or _closes(module, up):
                return True
            if isinstance(up.func, ast.Attribute) and up.func is child and name in _KEEPS:
                child = up
                continue
        return False
    return False


def _is_same_softmax(module: Module, other: ast.expr, probabilities: ast.expr) -> bool:
    """`p * log(p)` is an entropy, not a cross-entropy."""
    if same(other, probabilities):
        return True
    mine, theirs = _softmax(module, probabilities), _softmax(module, other)
    return mine is not None and theirs is not None and mine.call is theirs.call


def _closes(module: Module, call: ast.Call) -> bool:
    """nll_loss and its kin, which pick or weigh inside."""
    if module.resolve(call.func) in _CLOSED or "nll" in last_name(call).lower():
        return True
    made = call.func if isinstance(call.func, ast.Call) else values_of(module).model(call.func)
    return isinstance(made, ast.Call) and module.resolve(made.func) in _CLOSED


def _rebuilt(module: Module, of: ast.expr, probabilities: ast.expr, stable: str) -> str | None:
    """The text of `of` with the probabilities replaced by their log; None where more than picks lies between."""
    here, between = of, ""
    while here is not probabilities:
        if isinstance(here, ast.Subscript):
            between = module.segment(here)[len(module.segment(here.value)) :] + between
            here = here.value
        elif (
            isinstance(here, ast.Call)
            and isinstance(here.func, ast.Attribute)
            and module.resolve(here.func) is None
        ):
            inner = here.func.value
            if last_name(here) in _CLAMPS:
                here = inner
            elif last_name(here) in _PICKS or last_name(here) in _KEEPS:
                between = module.segment(here)[len(module.segment(inner)) :] + between
                here = inner
            else:
                return None
        elif isinstance(here, ast.BinOp) and isinstance(here.op, ast.Add):
            here = here.left if _epsilon(module, here.right) else here.right
        else:
            return None
    return stable + between
