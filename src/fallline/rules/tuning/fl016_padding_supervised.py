"""FL016: padding counts in the loss."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, names_in, receiver
from fallline.flow.losses import differentiated, loss_calls
from fallline.flow.values import values_of
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import written

# Whatever keeps padding out of the loss is called so, or is a number that the loss ignores.
_MASKS = re.compile(r"mask|ignore_index|-100|group_texts|reduction")
_IGNORES = re.compile(r"ignore_index\s*=[^,)\n]*pad", re.IGNORECASE)
_SHIFTED = re.compile(r"\[[^\]\n]*,\s*(1|\w+ ?\+ ?1):\s*\]")


class PaddingSupervised(Observed):
    code = "FL016"
    name = "padding-supervised"
    severity = Severity.ERROR
    what = """\
Finds padding positions that count: they have a label, or they are counted in the number that the summed loss is divided by."""
    why = """\
The model learns to write padding: in a batch of short answers most of the loss is about it, falls fast and looks good. In the divisor, short samples make the gradient smaller than it should be."""
    instead = """\
Set the labels of padding to -100, and divide by the number of labels that count.

```python
labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
loss = (per_token * mask).sum() / mask.sum()
```"""

    tokens = (
        b"labels",
        b"reduction",
        b"pad_token",
        b"pad_sequence",
        b"mask).mean(",
    )
    wrong = (
        """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2")


def collate(texts):
    batch = tokenizer(texts, padding="max_length", max_length=128, return_tensors="pt")
    batch["labels"] = batch["input_ids"].clone()  # FL016
    return batch
""",
        """\
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(8), 1, float(i % 2)) for i in range(32)]
for inputs, targets, mask in torch.utils.data.DataLoader(data, batch_size=8):
    per_token = F.cross_entropy(model(inputs), targets, reduction="none")
    loss = (per_token * mask).mean()  # FL016
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        """\
import torch
from torch import nn
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.pad_token = tokenizer.eos_token
model = nn.Sequential(nn.Embedding(50257, 8), nn.Linear(8, 50257))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for text in (["a", "a longer text"], ["one more", "two"]):
    tokens = tokenizer(text, padding=True, return_tensors="pt")["input_ids"]
    logits = model(tokens[:, :-1])
    loss = criterion(logits.flatten(0, 1), tokens[:, 1:].flatten())  # FL016
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )
    right = (
        """\
import torch
from torch import nn
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
tokenizer.pad_token = tokenizer.eos_token
model = nn.Sequential(nn.Embedding(50257, 8), nn.Linear(8, 50257))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for text in (["a", "a longer text"], ["one more", "two"]):
    batch = tokenizer(text, padding=True, return_tensors="pt")
    tokens = batch["input_ids"]
    logits = model(tokens[:, :-1])
    labels = tokens[:, 1:].masked_fill(batch["attention_mask"][:, 1:] == 0, -100)
    loss = criterion(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        """\
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def collate(texts):
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    batch["labels"] = batch["input_ids"].clone()
    batch["labels"][batch["attention_mask"] == 0] = -100
    return batch


data = [(torch.randn(8), 1, float(i % 2)) for i in range(32)]
for inputs, targets, mask in torch.utils.data.DataLoader(data, batch_size=8):
    per_token = F.cross_entropy(model(inputs), targets, reduction="none")
    loss = (per_token * mask).sum() / mask.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for node in _copied_labels(module):
            yield self.finding(
                module.location(node),
                "The labels are a copy of the padded tokens, so padding counts in the loss and the model learns to write it. "
                "Set them to -100 where the attention mask is 0",
            )
        for call in _losses_of_padding(module):
            yield self.finding(
                module.location(call),
                "The tokenizer pads with its end token, and this loss counts every position, padding too, so the model learns to write it. "
                "Set the labels to -100 where the attention mask is 0",
                severity=Severity.WARNING,
            )
        for call in _losses_of_padded_targets(module):
            yield self.finding(
                module.location(call),
                "The targets are padded with a class of their own, and this loss counts every position, padding too, so the model learns to write it. "
                "Give the loss the padding as `ignore_index`",
                severity=Severity.WARNING,
            )
        for call in module.method_calls("mean"):
            if not call.args and not call.keywords and _masked_product(module, call):
                yield self.finding(
                    module.location(call),
                    "The masked losses are averaged over all positions, also those that the mask removes, so the gradient shrinks with the padding. "
                    "Divide their sum by `mask.sum()`",
                )
        for call in module.method_calls("mean"):
            if not call.args and not call.keywords and _of_ignored(module, call):
                yield self.finding(
                    module.location(call),
                    "The losses of ignored labels are 0 here, and this mean counts them too, so the gradient shrinks with their share. "
                    "Divide the sum by the number of labels that count",
                    severity=Severity.WARNING,
                )

    def says(self, entry: dict[str, Any]) -> str:
        if entry["where"] == "divisor":
            return (
                "The loss is divided by all positions, padding too, so a batch with much padding has a smaller gradient. "
                f"Only {entry['share']:.0%} of them count. Divide by `mask.sum()`"
            )
        return (
            f"{entry['supervised']:,} padding positions count in the loss, {entry['share']:.0%} of all labels: the model learns to write padding. "
            "Give the loss the padding token as `ignore_index`, or set the labels of padding to -100"
        )


def _copied_labels(module: Module) -> Iterator[ast.Assign]:
    """`batch["labels"] = batch["input_ids"].clone()` of a batch that was padded, in a file that never writes -100."""
    text = module.source.text
    if '"labels"' not in text and "'labels'" not in text:
        return
    if "-100" in text or "DataCollatorForLanguageModeling" in text or _IGNORES.search(text):
        return
    for node in module.all(ast.Assign):
        match node:
            case ast.Assign([ast.Subscript(ast.Name() as batch, ast.Constant("labels"))], value):
                tokens = (
                    value.func.value
                    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
                    else value
                )
                made = module.value(batch)
                if (
                    _is_tokens_of(tokens, batch.id)
                    and isinstance(made, ast.Call)
                    and _pads(module, made)
                ):
                    yield node


def _losses_of_padding(module: Module) -> Iterator[ast.Call]:
    """Cross entropy over tokens shifted by one, in a file that pads with the end token and never masks anything."""
    if not module.source.spells("pad_token") or not any(
        map(_pads_with_the_end, module.all(ast.Assign))
    ):
        return
    if _MASKS.search(module.source.text) or not any(_pads(module, c) for c in module.all(ast.Call)):
        return
    for call, _ in loss_calls(module, "CrossEntropyLoss", "cross_entropy"):
        around = module.function(call)
        text = module.segment(around) if around is not None else module.source.text
        if differentiated(module, call) and _SHIFTED.search(text):
            yield call


_PADDED = re.compile(
    r"^(tgts?|targets?|labels?|ys?|tags?|trgs?|captions?|outputs?)(_\w+)?$|_(tgts?|targets?|labels?|tags?)$"
)
_PADDING = re.compile(r"(?i)pad")
_LEAVES_PADDING_OUT = re.compile(
    r"mask|ignore_index|-100|reduction|pack_padded|CTCLoss|ctc_loss|crf|CRF"
)


def _losses_of_padded_targets(module: Module) -> Iterator[ast.Call]:
    """Cross entropy over each position, in a file that pads its targets with `pad_sequence(targets)` and keeps the padding out nowhere."""
    if _LEAVES_PADDING_OUT.search(module.source.text):
        return
    if not any(_pads_targets(module, c) for c in module.calls("torch.nn.utils.rnn.pad_sequence")):
        return
    for call, _ in loss_calls(module, "CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss"):
        given = [module.segment(a) for a in call.args]
        if differentiated(module, call) and any(_FLATTENED.search(text) for text in given):
            yield call


# (batch, length, classes) as cross entropy takes it
_FLATTENED = re.compile(r"view\(|reshape\(|flatten\(|transpose\(|permute\(|\.mT\b")


def _pads_targets(module: Module, call: ast.Call) -> bool:
    """`pad_sequence(targets, batch_first=True, padding_value=PAD)`: with 0, or with what is called padding."""
    given, value = module.argument(call, 0, "sequences"), module.argument(call, 2, "padding_value")
    if given is None or not any(_PADDED.search(n) for n in names_in(given)):
        return False
    number = 0 if value is None else module.number(value)
    called = value is not None and _PADDING.search(module.segment(value)) is not None
    return number == 0 or (called and (number is None or number >= 0))


def _pads_with_the_end(node: ast.Assign) -> bool:
    """`tokenizer.pad_token = tokenizer.eos_token`."""
    match node.value, node.targets:
        case ast.Attribute(attr="eos_token"), [ast.Attribute(attr="pad_token")]:
            return True
    return False


def _is_tokens_of(node: ast.expr, batch: str) -> bool:
    match node:
        case ast.Subscript(ast.Name(name), ast.Constant("input_ids")) | ast.Attribute(
            ast.Name(name), "input_ids"
        ):
            return name == batch
    return False


def _pads(module: Module, call: ast.Call) -> bool:
    padding = module.argument(call, None, "padding")
    return padding is not None and module.constant(padding) in (True, "max_length", "longest")


def _masked_product(module: Module, call: ast.Call) -> bool:
    """`(losses * mask).mean()` where the losses were not reduced."""
    match call.func:
        case ast.Attribute(ast.BinOp(left, ast.Mult(), right)):
            sides = [(left, right), (right, left)]
            return any(
                _named_mask(mask)
                and not _by_confidence(module, mask)
                and _unreduced(module, losses)
                for losses, mask in sides
            )
    return False


def _reshaped(made: ast.expr) -> ast.expr | None:
    match made:
        case ast.Call(ast.Attribute(of, "view" | "reshape" | "view_as")):
            return of
    return None


def _of_ignored(module: Module, call: ast.Call) -> bool:
    """`F.cross_entropy(x, y, ignore_index=-1, reduction="none").mean()`, also of pieces that are put together again."""
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    made = values_of(module).origin(of) if of is not None else None
    if isinstance(made, ast.Call) and last_name(made) in {"cat", "concat", "stack"} and made.args:
        made = values_of(module).origin(made.args[0])
        if isinstance(made, ast.ListComp):
            made = made.elt
    if isinstance(made, ast.expr):
        made = values_of(module).through(made, _reshaped)
    if not isinstance(made, ast.Call) or last_name(made) not in {"cross_entropy", "nll_loss"}:
        return False
    ignored = module.argument(made, None, "ignore_index")
    reduction = module.argument(made, None, "reduction")
    whole = reduction is None or module.constant(reduction) != "none"
    return ignored is not None and not whole and not _is_only_measured(module, call)


def _is_only_measured(module: Module, call: ast.Call) -> bool:
    """Under no_grad, or in an evaluation: nothing learns from it."""
    return not differentiated(module, call)


def _named_mask(node: ast.expr) -> bool:
    inner = (
        node.func.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        else node
    )
    return (
        isinstance(inner, ast.Name | ast.Attribute)
        and "mask" in written(inner).rpartition(".")[2].lower()
    )


def _by_confidence(module: Module, mask: ast.expr) -> bool:
    """`mask = probability > 0.95`, as FixMatch selects samples: its loss is a mean over the whole batch on purpose."""
    of = mask
    for _ in range(4):
        match values_of(module).origin(of):
            case ast.Call(ast.Attribute(inner, "ge" | "gt"), [_]):
                return True
            case ast.Call(ast.Attribute(inner), []) | ast.Call(ast.Attribute(inner, "to"), _):
                of = inner
            case ast.Compare(ops=[ast.Gt() | ast.GtE()], comparators=[limit]):
                return module.number(limit) != 0
    return False


def _unreduced(module: Module, node: ast.expr) -> bool:
    made = module.value(node)
    if (
        isinstance(made, ast.Call)
        and isinstance(made.func, ast.Attribute)
        and made.func.attr in ("view", "reshape", "view_as")
    ):
        made = module.value(made.func.value)
    if isinstance(made, ast.Call) and last_name(made) == "squeeze":
        inside = receiver(module, made)
        made = module.value(inside) if inside is not None else made
    if isinstance(made, ast.Call) and last_name(made) == "gather":
        return "log_softmax" in module.segment(made)
    if (
        not isinstance(made, ast.Call)
        or module.resolve(made.func) != "torch.nn.functional.cross_entropy"
    ):
        return False
    reduction = module.argument(made, None, "reduction")
    return reduction is not None and module.constant(reduction) == "none"
