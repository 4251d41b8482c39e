"""FL602: a division by a value that can reach zero."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.flow.algebra import DEAD_BRANCH, Range
from fallline.flow.calls import last_name, operand, operations, receiver, same
from fallline.flow.losses import guarded, in_loss, unguarded
from fallline.flow.places import in_training
from fallline.flow.ranges import range_of
from fallline.flow.reached import seen_to_train
from fallline.flow.selections import means_of_selected
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below as below_of
from fallline.syntax.once import once

_DIVISIONS = ("div", "divide", "true_divide")
# Of these no more is known than that they may be zero somewhere.
_NOT_SAID = frozenset(
    {"difference", "abs", "square", "randn", "rand", "normalize", "zeros", "zeros_like", "linear"}
)


_PREDICTED = re.compile(r"(?i)thresh|prob|score|logit(?!s?_mask)|pred|confid|margin|entropy|hard")


class DivisionUnguarded(Rule):
    code = "FL602"
    name = "division-unguarded"
    severity = Severity.WARNING
    what = "A loss is divided by a value that can reach zero."
    why = """\
One zero makes the loss infinite, or NaN where 0 is divided by 0, and the next step writes NaN into every weight.

A mask that happens to select nothing in a batch is enough: `(loss * mask).sum() / mask.sum()` is 0 / 0. Adding an epsilon to a value that can be
negative only moves the pole: `1 / (pred + 1e-8)` is infinite at `pred = -1e-8`. `torch.where(n > 0, x / n, 0)` hides the value and
keeps the NaN gradient."""
    instead = """\
Keep the denominator away from zero.

- a count: `mask.sum().clamp(min=1)`, which gives a loss of 0 for an empty mask
- a value that is never negative: `x / (y + 1e-8)` or `x / y.clamp(min=1e-8)`
- a value of either sign: divide by something that is not predicted, such as `target.abs().clamp(min=1e-3)`
- under a condition: choose the denominator first, `x / torch.where(n > 0, n, 1)`"""
    fix_safety = "Safe for counts: one of at least 1 is unchanged. Weights that sum to less than 1 are not a count: do not apply it there."
    facts = ("reciprocal-plus-epsilon", "relative-error-loss", "empty-masks")
    tokens = (b"torch",)
    wrong = (
        """\
import torch
import torch.nn.functional as F


def pseudo_label_loss(weak, strong, threshold=0.95):
    confidence, labels = weak.detach().softmax(dim=-1).max(dim=-1)
    mask = confidence > threshold
    losses = F.cross_entropy(strong, labels, reduction="none")
    return (losses * mask).sum() / mask.sum()  # FL602


pseudo_label_loss(torch.zeros(4, 3), torch.randn(4, 3, requires_grad=True)).backward()
""",
        """\
import torch


def masked_loss(predictions, targets, mask):
    squared = (predictions - targets) ** 2
    return (squared * mask).sum() / mask.sum()  # FL602


masked_loss(torch.randn(4, requires_grad=True), torch.randn(4), torch.zeros(4)).backward()
""",
        """\
import torch
import torch.nn.functional as F

model = torch.nn.Linear(8, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, labels = torch.randn(16, 8), torch.full((16,), -100)
losses = F.cross_entropy(model(inputs), labels, ignore_index=-100, reduction="none")
valid = labels != -100
count = valid.sum()
loss = losses.sum() / count  # FL602
optimizer.zero_grad()
loss.backward()
optimizer.step()
""",
        """\
import torch


def relative_loss(pred, target):
    return ((pred - target) / pred).pow(2).mean()  # FL602


relative_loss(torch.tensor([0.0, 1.0], requires_grad=True), torch.ones(2)).backward()
""",
        """\
import torch


class KLDivergence(torch.nn.Module):
    def forward(self, p_logits, q_logits):
        p = torch.softmax(p_logits, dim=-1)
        q = torch.softmax(q_logits, dim=-1)
        ratio = p / q  # FL602
        return (p * torch.log(ratio.clamp(min=1e-8))).sum(-1).mean()


p, q = torch.zeros(1, 2, requires_grad=True), torch.tensor([[0.0, 200.0]], requires_grad=True)
KLDivergence()(p, q).backward()
""",
        """\
import torch


def token_loss(losses, num_tokens, per_token):
    if per_token:
        return losses / torch.clamp(num_tokens, min=1)
    return losses.sum() / num_tokens  # FL602


token_loss(torch.zeros(4, requires_grad=True), torch.tensor(0), False).backward()
""",
        """\
import math

import torch


def aspect_penalty(box, target):
    w, h = box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]
    gap = torch.atan(w / h) - target  # FL602
    return (4 / math.pi**2) * gap.pow(2).mean()


aspect_penalty(torch.zeros(2, 4, requires_grad=True), torch.ones(2)).backward()
""",
    )
    right = (
        # every id is found in a queue that it was put into; and an attribute that is given its value later
        """\
import torch


class ContrastiveLoss(torch.nn.Module):
    def __init__(self, queue):
        super().__init__()
        self.queue = queue
        self.temperature = 0

    def forward(self, similarity, ids):
        ids = ids.view(-1, 1)
        every = torch.cat([ids.t(), self.queue], dim=1)
        positive = torch.eq(ids, every).float()
        targets = positive / positive.sum(1, keepdim=True)
        return -(targets * (similarity / self.temperature).log_softmax(1)).sum(1).mean()


loss = ContrastiveLoss(torch.tensor([[7, 8]]))
loss.temperature = 0.1
loss(torch.randn(2, 4, requires_grad=True), torch.tensor([1, 2])).backward()
""",
        """\
import torch


def masked_loss(predictions, targets, mask):
    squared = (predictions - targets) ** 2
    return (squared * mask).sum() / mask.sum().clamp(min=1)


masked_loss(torch.randn(4, requires_grad=True), torch.randn(4), torch.zeros(4)).backward()
""",
        """\
import torch


def masked_loss(predictions, targets, mask):
    count = mask.sum()
    if count == 0:
        return predictions.sum() * 0.0
    return ((predictions - targets).abs() * mask).sum() / count


masked_loss(torch.randn(4, requires_grad=True), torch.randn(4), torch.zeros(4)).backward()
""",
        """\
import torch


def dice_loss(logits, target, smooth=1.0):
    probs = logits.sigmoid()
    overlap = (probs * target).sum()
    return 1 - (2 * overlap + smooth) / (probs.sum() + target.sum() + smooth)


dice_loss(torch.randn(4, requires_grad=True), torch.zeros(4)).backward()
""",
        """\
import torch


def mean_loss(losses, batch_size, weights):
    per_sample = losses.sum() / batch_size
    return per_sample / len(losses) + (losses / losses.numel()).sum() / weights.sum().clamp_min(1e-6)


mean_loss(torch.randn(4, requires_grad=True), 4, torch.zeros(4)).backward()
""",
        """\
import torch


def pooled(hidden, attention_mask):
    return (hidden * attention_mask.unsqueeze(-1)).sum(1) / attention_mask.sum(1, keepdim=True)


def pooling_loss(hidden, attention_mask, target):
    return (pooled(hidden, attention_mask) - target).square().mean()


pooling_loss(torch.randn(2, 3, 4, requires_grad=True), torch.ones(2, 3), torch.randn(2, 4)).backward()
""",
        # data, standardised once
        """\
import torch

inputs, targets = torch.randn(64, 3), torch.randn(64, 1)
inputs = (inputs - inputs.mean(0)) / inputs.std(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in zip(inputs.split(8), targets.split(8)):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
""",
        # a floor that is computed: 0 only for a batch of one, which has no negatives to compare with
        """\
import math

import torch


class Contrast(torch.nn.Module):
    def forward(self, positive, negative):
        batch_size, _ = positive.size()
        negatives = torch.clamp(negative, min=(batch_size - 1) * math.e**-2)
        return (positive / negatives).mean()


Contrast()(torch.randn(4, 2, requires_grad=True), torch.randn(4, 2)).backward()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for division, below, found in _reported(module):
            a_loss = in_loss(module, division)
            sure = a_loss and _likely(below, found) and seen_to_train(module, division, division)
            yield self.finding(
                module.location(division),
                _message(below, found, "The loss" if a_loss else "What is computed here"),
                severity=None if sure else Severity.INFO,
            )

        for mean, mask in means_of_selected(module):
            text = module.segment(mask)
            yield self.finding(
                module.location(mean),
                f"The loss is a mean over what `{text}` selects, which is NaN when it selects nothing. Sum instead, and divide by a count of at least 1",
                severity=Severity.WARNING
                if _PREDICTED.search(text) and seen_to_train(module, mean, mean)
                else Severity.INFO,
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        edits = []
        for division, below, found in _reported(module):
            if division.lineno != finding.at.line:
                continue
            counted = isinstance(below, ast.Call) and last_name(below) == "sum"
            if not counted or not found.source.startswith("the mask"):
                return None  # the line would still be wrong
            edits.append(Editor(module).replace(below, module.segment(below) + ".clamp(min=1)"))
        return Fix("Count at least 1", tuple(edits)) if edits else None


def _reported(module: Module) -> Iterator[tuple[ast.expr, ast.expr, Range]]:
    """The divisions that are reported, by what, and its range."""
    for division, below in _divisions(module):
        if isinstance(below, ast.Constant):
            continue
        found = unguarded(module, division, below, _reaches_zero) or _by_other_evidence(
            module, division, below
        )
        if found is None or _unsaid(below, found) or not in_training(module, division):
            continue
        if _standardises_data(module, division, found) or _counts_the_largest(module, below):
            continue
        if not _counts_a_diagonal(module, below):
            yield division, below, found


def _counts_the_largest(module: Module, below: ast.expr) -> bool:
    """A count of the entries of a row that equal its largest one: there is always one."""
    counted = receiver(module, below) if isinstance(below, ast.Call) else None

    def cast(made: ast.expr) -> ast.expr | None:
        is_cast = isinstance(made, ast.Call) and last_name(made) in {"float", "int", "long", "to"}
        return receiver(module, made) if is_cast and isinstance(made, ast.Call) else None

    of = values_of(module).through(counted, cast) if counted is not None else None
    for side in below_of(of, ast.Compare) if isinstance(of, ast.expr) else ():
        match side:
            case ast.Compare(ops=[ast.Eq()], comparators=[other]):
                made = values_of(module).origin(other)
                if any(last_name(n) in _LARGEST for n in below_of(made, ast.Call)):
                    return True
    return False


def _counts_a_diagonal(module: Module, below: ast.expr) -> bool:
    """A mask that begins as `torch.eye(n)`: each row has its entry, also after `mask.repeat(1, 2)`."""
    counted = receiver(module, below) if isinstance(below, ast.Call) else None
    if not isinstance(counted, ast.Name):
        return False
    bound = (module.parent(b) for b in module.bindings(counted.id, module.scope(counted)))
    made = (a.value for a in bound if isinstance(a, ast.Assign))
    return any(last_name(c) == "eye" for value in made for c in below_of(value, ast.Call))


_LARGEST = frozenset({"max", "min", "amax", "amin", "argmax", "argmin"})


def _by_other_evidence(module: Module, division: ast.expr, below: ast.expr) -> Range | None:
    """The same count is kept above zero elsewhere in this function; or an angle is taken of a quotient of differences."""
    if (
        isinstance(below, ast.Name)
        and not _is_setting(module, below)
        and not guarded(module, below)
        and _bounded(module, below)
    ):
        return Range(0.0, math.inf, f"`{below.id}`, which is bounded elsewhere in this function")
    if _own_sum(module, division, below) and not guarded(module, below):
        return Range(0.0, math.inf, last_name(values_of(module).origin(below)))
    up = module.parent(division)
    made = values_of(module).origin(below)
    padded = isinstance(made, ast.BinOp) and isinstance(made.op, ast.Add)  # h + eps
    if isinstance(up, ast.Call) and last_name(up) in {"atan", "arctan"} and not padded:
        found = range_of(module, below)
        if found is not None and found.source == "difference" and not guarded(module, below):
            return Range(0.0, 0.0, "a difference inside atan; `torch.atan2` takes both")
    return None


def _own_sum(module: Module, division: ast.expr, below: ast.expr) -> bool:
    """`power / power.sum()`, `error / error.mean()`: squares or what relu lets through, which are all 0 for silence."""
    made = values_of(module).origin(below)
    if not isinstance(made, ast.Call) or last_name(made) not in {"sum", "mean"}:
        return False
    of = receiver(module, made)
    if not isinstance(division, ast.BinOp) or of is None or not same(of, division.left):
        return False
    found = range_of(module, of)
    return found is not None and found.source in {"square", "abs", "relu"}


def _is_setting(module: Module, name: ast.Name) -> bool:
    """A whole number that was configured: `int(cfg.accumulation_steps)`, `args.k`."""
    match values_of(module).origin(name):
        case ast.Call(ast.Name("int" | "len")) | ast.Attribute() | ast.Constant():
            return True
    return False


def _bounded(module: Module, name: ast.Name) -> bool:
    """`x.clamp(min=1)`, `torch.clamp(x, min=1)` or `max(x, 1)` of the same value, which is another name then."""
    scope = module.scope(name)
    if len(module.bindings(name.id, scope)) > 1:
        return False
    for use, bound in _bounds(module).get(name.id, ()):
        floor = module.number(bound) if module.scope(use) is scope else None
        if floor is not None and 0 < floor <= 1:
            return True
    return False


_BOUNDS = frozenset({"max", "clamp", "clamp_min", "clip"})


@once
def _bounds(module: Module) -> dict[str, list[tuple[ast.expr, ast.expr | None]]]:
    """By name: where it is bounded from below, and by what."""
    found: dict[str, list[tuple[ast.expr, ast.expr | None]]] = {}
    for call in module.calls_named(_BOUNDS):
        match call:
            case ast.Call(ast.Name("max"), [a, b]):
                pairs: list[tuple[ast.expr | None, ast.expr | None]] = [(a, b), (b, a)]
            case _ if last_name(call) != "max":
                pairs = [(receiver(module, call), operand(module, call, "min"))]
            case _:
                continue
        for use, bound in pairs:
            if isinstance(use, ast.Name):
                found.setdefault(use.id, []).append((use, bound))
    return found


def _reaches_zero(found: Range) -> bool:
    return found.has_zero and found.source not in _NOT_SAID - {"linear"}


def _unsaid(below: ast.expr, found: Range) -> bool:
    """Where an epsilon was added to what can be negative, the pole is still there."""
    return found.source == "linear" and not isinstance(below, ast.BinOp)


def _standardises_data(module: Module, division: ast.expr, found: Range) -> bool:
    """`(inputs - inputs.mean(0)) / inputs.std(0)` outside any function and loop, where no backward is: done once, to data."""

    def once(node: ast.expr) -> bool:
        return module.function(node) is None and not module.in_loop(node)

    straight = once(division) and not any(map(once, module.method_calls("backward")))
    return straight and found.source in {"std", "var"}


def _divisions(module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Every division and what it divides by."""
    for node in module.all(ast.BinOp):
        if isinstance(node.op, ast.Div):
            yield node, node.right
    for aug in module.all(ast.AugAssign):
        if isinstance(aug.op, ast.Div):
            yield aug.value, aug.value
    for call in operations(module, *_DIVISIONS):
        below = operand(module, call, "other")
        if below is not None:
            yield call, below


def _likely(below: ast.expr, found: Range) -> bool:
    """Somebody has met the zero (a branch, a bound elsewhere, an epsilon), or what the model predicts chooses what is counted.

    Otherwise a whole batch would have to be empty or all equal: true, and seldom what happens.
    """
    if found is DEAD_BRANCH or found.source.startswith(("`", "a difference inside atan")):
        return True
    if found.guessed:
        return False
    match below:
        case ast.BinOp(op=ast.Add()):
            return found.low < 0
    return found.source.startswith("the mask") and _PREDICTED.search(found.source) is not None


def _message(below: ast.expr, found: Range, what: str) -> str:
    if found is DEAD_BRANCH:
        return (
            "This division is inside torch.where: the branch that is not taken still sends back 0 times infinity, so the gradient is NaN. "
            "Choose the denominator first: `x / torch.where(n > 0, n, 1)`"
        )
    if found.source.startswith("the mask"):
        return f"{what} is divided by a count that is 0 when nothing is selected ({found.said}), which makes it NaN. Count at least 1: `.sum().clamp(min=1)`"
    if found.low < 0 and isinstance(below, ast.BinOp):
        return f"{what} is divided by a value that can be 0 ({found.said}), and it can be negative too, so an epsilon only moves the zero. Divide by a bound instead: `y.abs().clamp(min=1e-3)`"
    return f"{what} is divided by a value that can be 0 ({found.said}), which makes it infinite or NaN. Keep it away from zero: `y.clamp(min=1e-8)`"
