"""FL114: clipping module by module leaves parameters out, or reaches one twice."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Backward, Clip, Model, Step, Trace
from fallline.finding import Finding, Severity
from fallline.flow.calls import names_in
from fallline.location import Location
from fallline.rule import Rule
from fallline.syntax import Module

__all__ = ["ClipUneven"]

_SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.norm(self.embed(x).mean(1)))


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randint(0, 20, (24, 5)), torch.randint(0, 3, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
loss_fn = nn.CrossEntropyLoss()
"""

_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")
_WALKS = {"modules", "named_modules", "children", "named_children"}
# Layers that hold parameters of their own, by family: a list that names one of a family covers it by its base class.
_LAYERS = frozenset(
    {
        "Linear", "Bilinear", "Embedding", "EmbeddingBag", "LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d", "BatchNorm2d",
        "BatchNorm3d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "RNN", "LSTM", "GRU",
        "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention", "PReLU",
    }
)  # fmt: skip


class ClipUneven(Rule):
    code = "FL114"
    name = "clip-uneven"
    severity = Severity.WARNING
    yields_to = ("FL103",)
    yields_within = "function"
    what = (
        "Finds clipping that goes module by module and leaves parameters out (a list of types that forgets Embedding or LayerNorm), "
        "or reaches parameters twice."
    )
    why = (
        "The layers that are left out are not clipped at all: with a clip for the Linear layers of an encoder, Embedding, LayerNorm and the attention's own "
        "`in_proj_weight` keep their full gradients, and the update points in a different direction."
    )
    instead = "Clip the parameters, not a list of types:\n\n```python\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n```"
    facts = ("per-layer-clip-forgets-layers", "per-layer-clip-twice-is-harmless")
    tokens = (b"clip_grad",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        telling = trace.of(Clip).where(lambda c: c.left_out or c.twice)
        for clip in telling.first_of_each():
            if not clip.measures_only:
                yield self._report(clip.at, clip.left_out or (), clip.twice or ())
        # live, the parts of one model are parameters of their own, and the clips say themselves what they leave out
        for clip, left in () if trace.live else _models_left_out(trace):
            yield self._report(clip.at, left, ())

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls(*_CLIPS):
            forgotten = _forgotten(module, call)
            if forgotten:
                yield self._report(
                    module.location(call), tuple(f"{name} layers" for name in forgotten), ()
                )

    def _report(self, at: Location, left_out: tuple[str, ...], twice: tuple[str, ...]) -> Finding:
        if left_out:
            message = f"Clipping module by module leaves out {_listed(left_out)}: their gradients stay as large as they are. "
        else:
            message = f"Clipping module by module reaches {_listed(twice)} more than once. "
        return self.finding(
            at,
            message + "Clip model.parameters() once.",
            left_out=list(left_out),
            twice=list(twice),
        )

    wrong = (
        _SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        for module in model.modules():
            if isinstance(module, nn.Linear):
                torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)  # FL114
        optimizer.step()
""",
        _SETUP
        + """

def clip_layers(model, limit):
    for name, layer in model.named_modules():
        if isinstance(layer, (nn.Linear, nn.Embedding)):
            nn.utils.clip_grad_norm_(layer.parameters(), limit)  # FL114


def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        clip_layers(model, 1.0)
        optimizer.step()


for epoch in range(2):
    train(model, loader, optimizer)
""",
    )
    right = (
        _SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
        # every layer, each once
        _SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        for layer in model.children():
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
""",
        # the list of types names every layer that the model has
        _SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        for layer in model.modules():
            if isinstance(layer, (nn.Linear, nn.Embedding, nn.LayerNorm)):
                torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
""",
        # one limit for each group, on purpose
        _SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.embed.parameters(), 0.5)
        torch.nn.utils.clip_grad_norm_([*model.norm.parameters(), *model.out.parameters()], 1.0)
        optimizer.step()
""",
    )


def _models_left_out(trace: Trace) -> Iterator[tuple[Clip, tuple[str, ...]]]:
    """Whole models that one line clips in turn, and one that the optimizer holds beside them and that nothing clips before the step."""
    told: set[str] = set()
    for step in trace.of(Step):
        held = trace.held_by(step.optimizer)
        clips = [c for c in trace.before(step).until(Backward).of(Clip) if not c.measures_only]
        if not held or any(c.parameters is None for c in clips):
            continue
        clipped = frozenset[str]().union(*(c.parameters or () for c in clips))
        for clip in clips:
            here = {c.parameters for c in clips if c.at == clip.at}
            left = held - clipped
            if len(here) > 1 and left and clipped < held and str(clip.at) not in told:
                told.add(str(clip.at))
                models = [m.type or "one model" for m in trace.objects_of(Model) if m.id in left]
                yield clip, tuple(sorted(models)) or ("one model",)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def _forgotten(module: Module, call: ast.Call) -> list[str]:
    """Layers with parameters that this file makes and the list of types around this clip does not name."""
    walked = _walked(module, call)
    if walked is None:
        return []
    types = _types_tested(module, call, walked)
    if types is None:
        return []
    made = {name for name in _LAYERS for _ in module.calls(f"torch.nn.{name}")}
    return sorted(made - types)


def _walked(module: Module, call: ast.Call) -> str | None:
    """The name of the submodule whose parameters are clipped, in a loop over a model's modules."""
    match module.argument(call, 0, "parameters"):
        case ast.Call(ast.Attribute(ast.Name(name), "parameters")):
            for up in module.parents(call):
                match up:
                    case ast.For(target, ast.Call(ast.Attribute(attr=walk))) if walk in _WALKS:
                        if name in names_in(target):
                            return name
    return None


def _types_tested(module: Module, call: ast.Call, walked: str) -> set[str] | None:
    """The torch.nn layers that `isinstance(module, ...)` lets through; None where there is no such test or an unknown type."""
    for up in module.parents(call):
        match up:
            case ast.For():
                return None
            case ast.If(test, body) if call.lineno >= body[0].lineno:
                return _layers_named(module, test, walked)
    return None


def _layers_named(module: Module, test: ast.expr, walked: str) -> set[str] | None:
    """The layers of `isinstance(walked, ...)`, when all of them are torch's."""
    match test:
        case ast.Call(ast.Name("isinstance"), [ast.Name(name), types]) if name == walked:
            given = module.value(types)
            elements = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
            names = [module.resolve(e) or "" for e in elements]
            if all(n.startswith("torch.nn.") for n in names):
                return {n.rpartition(".")[2] for n in names}
    return None
