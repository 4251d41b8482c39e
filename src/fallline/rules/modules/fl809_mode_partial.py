"""FL809: a part of the program runs in the wrong mode: an evaluation in train mode, a target network with dropout."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.events import Backward, Batch, Forward, Mode, Step, Trace
from fallline.finding import Finding, Severity
from fallline.flow.answers import left_in_train_mode
from fallline.flow.calls import last_name
from fallline.flow.evaluations import never_in_eval_mode, trained_whatever_it_is_told
from fallline.flow.inference import left_out_of_rest, run_in_train_mode
from fallline.flow.modes import class_has_mode
from fallline.flow.modules import module_class
from fallline.flow.never_rests import never_rests
from fallline.flow.recording import turns_off
from fallline.flow.rests import undone_by_train
from fallline.flow.values import values_of
from fallline.location import Location
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of

__all__ = ["ModePartial"]

_EVALUATES = re.compile(
    r"(^|_|\.)(eval|evaluate|evaluation|valid|validate|validation|val|test)(_|$|[A-Z])",
    re.IGNORECASE,
)
# What such a function reports is looked at, and nothing learns from it.
_REPORTS = re.compile(
    r"(^|_)(report|metrics?|accuracy|similarit(y|ies)|scores?|plot|visuali[sz]e|preview|show|demo|infer|inference|predict|predictions?|translate|transcribe|"
    r"reconstruct|generate|samples?)(_|$)",
    re.IGNORECASE,
)
# What the training itself asks for: what it explores, compares with or learns from.
_FOR_TRAINING = re.compile(
    r"train|loss|forward|action|(^|_)act(_|$)|explor|rollout|collect|replay|buffer|negative|noise|target|pseudo|label|teacher|ema|score_fn|batch|next_|_step",
    re.IGNORECASE,
)
# Dropout that is left on to get many answers, statistics that are made again, losses that are computed there for training.
_ON_PURPOSE = re.compile(
    r"train|monte|mc_|mcd|uncertain|ensemble|update_bn|calibrat|warm", re.IGNORECASE
)
_OLD = re.compile(r"compute_(old_)?(log_?probs?|values|logps)$")
_MODES = frozenset({"eval", "train"})
_TARGET = re.compile(r"(^|_)(target|tgt)(_|$)|_target\d?$", re.IGNORECASE)
_NOT_FOR_VALUES = re.compile(r"encoder|ema|teacher|momentum|key", re.IGNORECASE)


class ModePartial(Rule):
    code = "FL809"
    name = "mode-partial"
    severity = Severity.ERROR
    what = "An evaluation runs in train mode, or a network that is meant to be fixed (a target network) does."
    why = """\
In train mode dropout changes the answer from call to call, and BatchNorm uses the statistics of the batch and moves its running ones.

An evaluation in train mode measures a different model from the one that will be used, its result depends on the batch, and the model's statistics move
towards the validation data. A target network in train mode gives noisy targets."""
    instead = (
        "Set the mode where it matters, and set it back:\n\n"
        "```python\nmodel.eval()\nwith torch.no_grad():\n    validate(model)\nmodel.train()\n```"
    )
    references = (
        "https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval",
    )
    tokens = (
        b".train()", b"eval", b"valid", b"test", b"target", b"compute_", b"load", b"pretrained", b"weights", b"pytorch_fid",
    )  # fmt: skip

    def check(self, trace: Trace) -> Iterator[Finding]:
        """Evaluations of a model that is trained in the same execution, in train mode."""
        if not trace.of(Step):
            return
        for mode in () if trace.live else _trained_at_rest(trace):
            yield self.finding(
                mode,
                "This model is trained in eval mode from the first update on: its dropout is off, and BatchNorm uses the statistics that it has. "
                "If that is not meant, call train() instead",
                severity=Severity.INFO,
            )
        trained = _trained(trace)
        walked = {e.at.function for e in trace.of(Backward)}
        modes: dict[str, Mode] = {}
        seen: set[tuple[str, str]] = set()
        loop: Batch | None = None
        for event in trace.of(Mode, Forward, Batch):
            match event:
                case Batch():
                    loop = event
                case Mode(model=str(owner)):
                    modes |= dict.fromkeys(trace.within(owner), event)
                case Forward(model=str(name)) if _in_evaluation(event):
                    if trained.isdisjoint(trace.sets_of(name)):
                        continue
                    if event.at.function in walked or (name, event.at.function) in seen:
                        continue
                    if _in_train_mode(trace, event, modes.get(name)):
                        seen.add((name, event.at.function))
                        inside = loop is not None and loop.at.function == event.at.function
                        yield self.finding(
                            loop if loop is not None and inside else event,
                            "The model is evaluated in train mode: dropout is on, and BatchNorm uses and updates its statistics on this data. "
                            "Call eval() before the evaluation and train() after it",
                            severity=self._gravity(trace, event, name),
                        )

    def _gravity(self, trace: Trace, event: Forward, name: str) -> Severity | None:
        """BatchNorm's statistics move with what is evaluated; dropout only makes the result noisy, which matters here and there. A report may be meant so."""
        if not _says_that_it_evaluates(event):
            return Severity.INFO
        model = trace.model(name)
        moves = trace.live or (model is not None and model.batchnorm)
        return None if moves else Severity.WARNING

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """A caller that sets eval mode where another one cannot be seen to."""
        for forward in trace.of(Forward):
            if forward.training is False:
                yield forward.at
                loop = trace.before(forward).of(Batch).first
                if loop is not None:
                    yield loop.at

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        yield from self._targets(module)
        yield from self._old_probabilities(module)
        for rest in undone_by_train(module):
            yield self.finding(
                module.location(rest.call),
                f"`self.{rest.part}` is frozen and put into eval mode here only: the first `model.train()` puts it back into train mode, so its BatchNorm "
                f"statistics move and its dropout is on. Override `train()` and call `self.{rest.part}.eval()` there",
                severity=Severity.WARNING if rest.has_mode else Severity.INFO,
                presuming=f"`self.{rest.part}` has BatchNorm or dropout",
            )
        for call in run_in_train_mode(module):
            yield self.finding(
                module.location(call),
                "The loaded model runs in train mode: dropout is on, and BatchNorm uses the statistics of this batch, so the result is not that of the trained model."
                " Call eval() after loading the weights",
                severity=Severity.WARNING,
            )
        for left in left_out_of_rest(module):
            yield self.finding(
                module.location(left.load),
                f"`{left.model}` is loaded beside `{left.other}`, and only `{left.other}` is put into eval mode: `{left.model}` runs in train mode, so its dropout is on and "
                f"its BatchNorm uses the statistics of the batch. Call `{left.model}.eval()` too",
                severity=Severity.WARNING if left.has_mode else Severity.INFO,
                presuming=f"`{left.model}` has dropout or BatchNorm",
            )
        told: set[ast.AST | None] = set()
        for loop, sure in never_in_eval_mode(module):
            told.add(module.function(loop))
            yield self.finding(
                module.location(loop),
                "This evaluation runs in train mode: nothing in this file puts the model into eval mode."
                " With dropout or BatchNorm in the model the result depends on chance and on the batch. Call eval() before the evaluation and train() after it",
                severity=Severity.WARNING if sure else Severity.INFO,
            )

        for call in trained_whatever_it_is_told(module):
            yield self.finding(
                module.location(call),
                "This sets train mode also where the function is told not to train, so the evaluation it does then runs with dropout, and moves BatchNorm's statistics."
                " Call train() or eval() according to the argument",
                severity=Severity.WARNING,
                presuming="the model has dropout or BatchNorm",
            )

        for answer, other in left_in_train_mode(module):
            yield self.finding(
                module.location(answer.call),
                f"`{answer.function.name}` runs `{answer.model}` in whatever mode it is in, which after training or loading is train mode; `{other}` calls eval() first."
                " With dropout or BatchNorm in the model the answer depends on chance and on the batch. Call eval() here too",
                severity=Severity.INFO,
            )

        for asked in never_rests(module):
            if asked.function not in told:
                yield self.finding(
                    module.location(asked.call),
                    f"`{asked.function.name}` runs `{asked.model}` in train mode: this code calls `{asked.model}.train()`, and nothing here calls eval()."
                    " With dropout or BatchNorm in the model the answer depends on chance and on the batch. Call eval() before and train() after it",
                    severity=Severity.WARNING if asked.has_mode else Severity.INFO,
                )

    def _old_probabilities(self, module: Module) -> Iterator[Finding]:
        """A policy whose old log-probabilities are computed without a gradient, in a class that trains it and never leaves train mode."""
        if not any(_OLD.match(f.name) for f in module.all(ast.FunctionDef)):
            return
        for cls in module.all(ast.ClassDef):
            methods = methods_of(cls)
            if not any(re.match(r"_?(update|train)", m.name) for m in methods):
                continue
            if any(n.attr in _MODES for n in below(cls, ast.Attribute)):
                continue
            for method in methods:
                if _OLD.match(method.name) and _without_gradient(method):
                    yield self.finding(
                        module.location(_first_statement(method)),
                        f"`{method.name}` never puts the model into eval mode: if it has dropout, these values differ from those of the same weights a moment later, "
                        "and the ratio of new to old is noise. Call eval() here and train() after it",
                        severity=Severity.INFO,
                    )

    def _targets(self, module: Module) -> Iterator[Finding]:
        """A copy for the targets of reinforcement learning, with dropout or BatchNorm, that never goes into eval mode."""
        if "gamma" not in module.source.text or "reward" not in module.source.text:
            return
        rests = {module.segment(c.func.value) for c in module.method_calls("eval") if isinstance(c.func, ast.Attribute)}  # fmt: skip
        for statement in module.all(ast.Assign):
            match statement:
                case ast.Assign(
                    [(ast.Name() | ast.Attribute(ast.Name("self"))) as target], ast.Call() as made
                ):
                    name = module.segment(target)
                case _:
                    continue
            if not _TARGET.search(name) or _NOT_FOR_VALUES.search(name) or name in rests:
                continue
            if ".eval()" not in module.segment(made) and _has_mode(module, made):
                yield self.finding(
                    module.location(statement),
                    f"`{name}` is a target network with dropout or BatchNorm and stays in train mode, so its targets are noisy. Call `{name}.eval()`",
                    severity=Severity.WARNING,
                )

    wrong = (
        """\
import torch
from torch import nn


def evaluate(model, loader):
    right = 0
    with torch.no_grad():
        for x, y in loader:  # FL809
            right += (model(x).argmax(1) == y).sum().item()
    return right


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(evaluate(model, loader))
""",
        # frozen and at rest, until somebody calls train()
        """\
import torch
from torch import nn


class Fusion(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.encoder.fc = nn.Identity()
        self.head = nn.Linear(512, 2)
        self.encoder.eval()  # FL809
        for parameter in self.encoder.parameters():
            parameter.requires_grad = False

    def forward(self, x):
        with torch.no_grad():
            features = self.encoder(x)
        return self.head(features)
""",
    )
    right = (
        """\
import torch
from torch import nn


class Fusion(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.encoder.fc = nn.Identity()
        self.head = nn.Linear(512, 2)
        self.encoder.eval()
        for parameter in self.encoder.parameters():
            parameter.requires_grad = False

    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            features = self.encoder(x)
        return self.head(features)
""",
        """\
import torch


class Actor:
    def compute_log_prob(self, data):
        self.module.eval()
        with torch.no_grad():
            return self.module(data)

    def update_policy(self, data):
        self.module.train()
        self.module(data).mean().backward()
        self.optimizer.step()
""",
        """\
import torch
from torch import nn


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
    return right


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(evaluate(model, loader))
""",
        """\
import torch
from torch import nn


# Neither dropout nor BatchNorm: the mode does not matter.
def validate(model, loader):
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print(validate(model, loader))
""",
    )


def _without_gradient(method: ast.FunctionDef) -> bool:
    """Under torch.no_grad, as a decorator or inside."""
    return any(map(turns_off, (method, *below(method, ast.With))))


def _first_statement(method: ast.FunctionDef) -> ast.stmt:
    """After the docstring."""
    match method.body:
        case [ast.Expr(ast.Constant(str())), second, *_]:
            return second
    return method.body[0]


def _trained_at_rest(trace: Trace) -> Iterator[Mode]:
    """The eval() of a model that every update of its optimizer finds at rest."""
    modes: dict[str, Mode] = {}
    used: dict[str, list[Forward]] = {}
    at_rest: dict[str, list[bool]] = {}
    for event in trace.of(Mode, Forward, Step):
        match event:
            case Mode(model=str(owner)):
                modes |= dict.fromkeys(trace.within(owner), event)
            case Forward(model=str(name)) if event.grad and event.used:
                used.setdefault(name, []).append(event)
            case Step():
                held = trace.held_by(event.optimizer) or frozenset[str]()
                for name in [n for n in used if trace.sets_of(n) and trace.sets_of(n) <= held]:
                    resting = all(f.training is False for f in used.pop(name))
                    at_rest.setdefault(name, []).append(resting)
    for name, each in at_rest.items():
        mode = modes.get(name)
        if len(each) > 1 and all(each) and mode is not None and mode.mode == "eval":
            yield mode


def _trained(trace: Trace) -> set[str | None]:
    """The models that optimizers step; where that is not known, those whose output reaches a backward."""
    held: set[str | None] = set()
    for step in trace.of(Step):
        held |= set(step.parameters or trace.held_by(step.optimizer) or ())
    return held or {e.model for e in trace.of(Forward) if e.used}


def _in_evaluation(forward: Forward) -> bool:
    """In a function that is called after what it does, and that no backward uses."""
    name = forward.at.function.rpartition(".")[2]
    reports = _REPORTS.search(name) is not None and _FOR_TRAINING.search(name) is None
    if not (reports or _says_that_it_evaluates(forward)) or _ON_PURPOSE.search(forward.at.function):
        return False
    return forward.used is not True and (forward.grad is False or forward.used is False)


def _says_that_it_evaluates(forward: Forward) -> bool:
    return _EVALUATES.search(forward.at.function.rpartition(".")[2]) is not None


def _in_train_mode(trace: Trace, forward: Forward, mode: Mode | None) -> bool:
    """The model was made in view, is different in eval mode, and is not in it."""
    model = trace.model(forward.model)
    if model is None or model.assumed or not (model.has_mode or model.batchnorm):
        return False
    if mode is not None and mode.mode != "train":
        return False
    return forward.training is not False


def _has_mode(module: Module, made: ast.Call) -> bool:
    """`copy.deepcopy(policy)`, `QNet(...)`: of a class of the project that has such layers."""
    inner: ast.expr = made
    if last_name(made) == "deepcopy" and made.args:
        built = values_of(module).built(made.args[0])
        inner = built
    if not isinstance(inner, ast.Call):
        return False
    cls = module_class(module, inner.func)
    return cls is not None and class_has_mode(*cls) is True
