"""FL805 dropout-always-on: F.dropout without `training` drops in evaluation too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.flow.calls import last_name, of_self
from fallline.flow.draws import drawn_in_every_mode
from fallline.flow.left_before import tests_left_at
from fallline.flow.options import stays
from fallline.flow.unused import given_to
from fallline.flow.values import values_of
from fallline.flow.views import is_a_view
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_KINDS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)
_ATTENDS = re.compile(r"att(entio)?n")
_FUNCTIONS = tuple(f"torch.nn.functional.{k}" for k in _KINDS)
_LAYERS = tuple(
    f"torch.nn.{k}"
    for k in (
        "Dropout",
        "Dropout1d",
        "Dropout2d",
        "Dropout3d",
        "AlphaDropout",
        "FeatureAlphaDropout",
    )
)
# Where dropout is meant to stay on: augmentation, Monte Carlo estimates, denoising.
_ON_PURPOSE = re.compile(
    r"augment|mc_|monte|uncertain|noise|noisy|corrupt|perturb|mask|bayes|pre_?net", re.IGNORECASE
)
_SAID_SO = re.compile(
    r"#.*(always|non.?determin|inference|on purpose|intention|even (in|at|during))", re.IGNORECASE
)


class DropoutAlwaysOn(Rule):
    code = "FL805"
    name = "dropout-always-on"
    severity = Severity.ERROR
    what = "`F.dropout` is called in a module without `training=self.training`, or a fresh `nn.Dropout` is made on every call."
    why = (
        "`F.dropout` has `training=True` as its default and a fresh `nn.Dropout(...)` starts in train mode: `model.eval()` does not reach "
        "either. Validation and deployment run with random units dropped; results are worse and differ from call to call."
    )
    instead = "Pass `training=self.training`, or make one `nn.Dropout` in `__init__`."
    fix_safety = "Adds `training=self.training`; changes nothing in train mode."
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html",
    )
    tokens = (b"dropout", b"Dropout", b"drop")

    wrong = (
        """\
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.dropout(x, p=0.5)  # FL805
        return self.fc2(x)
""",
        """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return torch.nn.functional.dropout2d(self.conv(x), 0.2)  # FL805
""",
        """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return nn.Dropout(0.3)(self.fc(x))  # FL805
""",
        """\
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = dropout

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)  # FL805
""",
        """\
import torch.nn.functional as F
from torch import nn


def drop_and_add(x, residual):
    return F.dropout(x, 0.1) + residual  # FL805


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return drop_and_add(self.layer(x), x)
""",
    )
    right = (
        """\
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = F.dropout(x, 0.5, self.training)
        x = F.dropout(x, training=self.training)
        if self.training:
            x = F.dropout(x, 0.1)
        x = F.dropout(x, p=0.1 if self.training else 0.0)
        return self.drop(x)
""",
        """\
import torch.nn as nn
import torch.nn.functional as F


class MonteCarlo(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)

    def mc_samples(self, x, n):
        return [F.dropout(x, 0.5) for _ in range(n)]
""",
        # left before it drops
        """\
import torch.nn as nn
from torch.nn.functional import dropout


class DropMessage(nn.Module):
    def __init__(self, rate=0.5):
        super().__init__()
        self.rate = rate

    def forward(self, messages):
        if not self.training or self.rate == 0.0:
            return messages
        return dropout(messages, self.rate)
""",
        """\
import torch.nn.functional as F


def augment(features):
    return F.dropout(features, 0.2)


def attention(q, k, v, p, **options):
    return F.dropout(q @ k.transpose(-1, -2), p, **options) @ v
""",
        """\
import torch.nn.functional as F
from torch import nn


def drop_and_add(x, residual, training):
    return F.dropout(x, 0.1, training=training) + residual


class Attention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = dropout

    def forward(self, q, k, v):
        rate = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=rate)
        return drop_and_add(out, q, self.training)
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls_named(_ATTENDS):
            rate = _attention_rate(module, call)
            if rate is not None and not _on_purpose(module, call):
                yield self.finding(
                    module.location(call),
                    f"This attention drops with `dropout_p={module.segment(rate)}` in evaluation too, because the function does not know the module's mode. "
                    f"Pass `dropout_p={module.segment(rate)} if self.training else 0.0`.",
                    severity=_while_off(module, rate),
                )
        for call in module.calls(*_FUNCTIONS):
            if self._always_on(module, call) and not _on_purpose(module, call):
                yield self.finding(
                    module.location(call),
                    f"`{module.segment(call.func)}` has no `training=self.training`, so it drops units in evaluation too and results differ from call to call. Pass it.",
                    severity=_while_off(module, Module.argument(call, 1, "p")),
                    related={"cause": module.location(module.function(call) or call)},
                )
        for layer in module.calls(*_LAYERS):
            use = module.parent(layer)
            if isinstance(use, ast.Call) and use.func is layer and not _on_purpose(module, use):
                yield self.finding(
                    module.location(use),
                    f"This `{module.segment(layer.func)}` is made on every call and is always in train mode, so it drops units in evaluation too. Make it once in `__init__`.",
                )

        for draw in drawn_in_every_mode(module):
            yield self.finding(
                module.location(draw),
                "This dropout is written by hand and does not ask for the module's mode, so it drops in evaluation too and results differ from call to call. "
                "Do it only `if self.training`.",
                severity=Severity.WARNING,
            )

    def _always_on(self, module: Module, call: ast.Call) -> bool:
        if Module.has_star(call) or not call.args or len(call.args) > 2:
            return False
        given = {k.arg for k in call.keywords}
        if given & {"training", "train"}:
            return False
        rate = Module.argument(call, 1, "p")
        if rate is None:
            return True
        # a rate that the caller gives may be 0 in evaluation already, as with scaled_dot_product_attention
        return (
            module.number(rate) != 0
            and "train" not in module.segment(rate)
            and not (_is_parameter(module, rate) and not _given_in_every_mode(module, call, rate))
        )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = next(
            (c for c in module.calls(*_FUNCTIONS) if module.location(c) == finding.at), None
        )
        if call is not None:
            if module.class_(call) is None:
                return None  # a plain function has to be given the mode
            function, editor = module.function(call), Editor(module)
            same = [c for c in module.calls(*_FUNCTIONS) if module.function(c) is function]
            meant = [c for c in same if self._always_on(module, c) and not _on_purpose(module, c)]
            edits = (editor.add_argument(c, "training=self.training") for c in meant)
            return Fix("Follow the module's mode", tuple(edits))
        use = module.call_at(finding.at)
        rate = _attention_rate(module, use) if use is not None else None
        if rate is not None:
            chosen = f"{module.segment(rate)} if self.training else 0.0"
            return Fix("Follow the module's mode", (Editor(module).replace(rate, chosen),))
        text = _as_function(module, use) if use is not None else None
        if use is None or text is None:
            return None
        return Fix("Follow the module's mode", (Editor(module).replace(use, text),))


_NOT_TRAINING = re.compile(r"\bnot\b[^,]*\btraining\b|\btraining (==|is) False")
_HANDED_ON = 4  # a rate that a model gives its stages, these their blocks, these their attention


def _while_off(module: Module, rate: ast.expr | None) -> Severity | None:
    """A note where the rate is an argument of the constructor that is 0 wherever the project gives it."""
    match rate:
        case ast.Attribute(ast.Name("self"), attr) if (cls := module.class_(rate)) is not None:
            given = module.attribute_values(cls, attr)
            off = given and all(_is_off(module, cls, v) for v in given)
            return Severity.INFO if off else None
    return None


def _is_off(module: Module, cls: ast.ClassDef, rate: ast.expr, depth: int = 0) -> bool:
    """0, or an argument of the constructor that every call and every configuration leaves at 0, also through the classes that hand it on."""
    if not isinstance(rate, ast.Name):
        return module.number(rate) == 0
    if stays((module,), rate.id, 0, code=True):
        return True

    def off(home: Module, value: ast.expr | None) -> bool:
        if value is None or home.number(value) == 0:
            return value is not None
        around = home.class_(value)
        return around is not None and depth < _HANDED_ON and _is_off(home, around, value, depth + 1)

    given = list(given_to(module, cls, rate.id))
    return bool(given) and all(off(home, value) for home, value in given)


def _attention_rate(module: Module, call: ast.Call) -> ast.expr | None:
    """The rate that an attention function is given in every mode: `dropout_p=self.dropout`, or a number above 0."""
    name = last_name(call)
    fused = name == "scaled_dot_product_attention" or name.startswith("flash_attn")
    if not fused and not of_self(call.func):
        return None
    cls = module.class_(call)
    if not fused and not _kept_function(cls, name):
        return None
    rate = module.argument(call, 4 if name == "scaled_dot_product_attention" else None, "dropout_p")
    match rate:
        case ast.Attribute(ast.Name("self"), attr) if cls is not None and "train" not in attr:
            values = [module.number(v) for v in module.attribute_values(cls, attr)]
            modes = ast.walk(cls)
            by_hand = any(
                isinstance(n, ast.FunctionDef) and n.name in {"train", "eval"} for n in modes
            )
            return None if by_hand or (values and all(v == 0 for v in values)) else rate
        case ast.Constant(int() | float() as number) if number:
            return rate
    return None


def _kept_function(cls: ast.ClassDef | None, name: str) -> bool:
    """An attention function kept as an attribute, such as `self._attention_call`: not a method of this class."""
    if cls is None or not _ATTENDS.search(name):
        return False
    return not any(isinstance(n, ast.FunctionDef) and n.name == name for n in cls.body)


def _as_function(module: Module, use: ast.Call) -> str | None:
    """`nn.Dropout(p)(x)` as `nn.functional.dropout(x, p, training=self.training)`."""
    layer = use.func
    if not isinstance(layer, ast.Call) or layer.keywords or len(layer.args) > 1:
        return None
    kind = dict(zip(_LAYERS, _FUNCTIONS, strict=True)).get(module.resolve(layer.func) or "")
    function = module.spelling(kind) if kind is not None else None
    if function is None or len(use.args) != 1 or use.keywords or Module.has_star(use):
        return None
    parts = [module.segment(a) for a in (*use.args, *layer.args)]
    return f"{function}({', '.join(parts)}, training=self.training)"


def _is_parameter(module: Module, node: ast.expr) -> bool:
    if not isinstance(node, ast.Name):
        return False
    return any(isinstance(b, ast.arg) for b in module.bindings(node.id, module.scope(node)))


def _given_in_every_mode(module: Module, call: ast.Call, rate: ast.expr) -> bool:
    """A plain function whose rate every caller reads off the module, without a word about its mode: `attend(x, self.p)`."""
    function = module.function(call)
    if function is None or module.class_(call) is not None or not isinstance(rate, ast.Name):
        return False
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    uses = list(values_of(module).calls_of(function))
    if rate.id not in names or not uses:
        return False
    place = names.index(rate.id)
    given = [Module.argument(use, place, rate.id) for use in uses]
    return all(
        g is not None and of_self(g) is not None and "train" not in module.segment(g) for g in given
    )


def _helps_a_module(module: Module, call: ast.Call) -> bool:
    """In a plain function without a word about the mode, which a module of this file calls."""
    function = module.function(call)
    if function is None or "train" in module.segment(function) or _ON_PURPOSE.search(function.name):
        return False
    homes = [module.class_(use) for use in values_of(module).calls_of(function)]
    return bool(homes) and all(home is not None and module.is_module_class(home) for home in homes)


def _on_purpose(module: Module, call: ast.Call) -> bool:
    """Outside a module's methods, under a test of the mode, or where the names say that dropping is the point."""
    cls = module.class_(call)
    if is_a_view(module, call):
        return True
    if cls is None or not module.is_module_class(cls):
        return cls is not None or not _helps_a_module(module, call)
    if any(
        _SAID_SO.search(line)
        for line in module.source.lines[max(0, call.lineno - 2) : call.end_lineno]
    ):
        return True
    here: ast.AST = call
    for up in module.parents(call):
        if isinstance(up, ast.If | ast.IfExp) and "train" in module.segment(up.test):
            return True
        if isinstance(here, ast.stmt) and any(
            _NOT_TRAINING.search(module.segment(test)) for test in tests_left_at(up, here)
        ):
            return True
        here = up
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            first = up.args.posonlyargs + up.args.args
            if _ON_PURPOSE.search(up.name) or "train" in up.name:
                return True
            if module.parent(up) is cls and (
                not first or first[0].arg != "self" or up.name == "__init__"
            ):
                return True
        if up is cls:
            break
    return _ON_PURPOSE.search(cls.name) is not None
