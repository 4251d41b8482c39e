"""FL201: gradients are clipped while they are still multiplied by the loss scale."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Backward, Clip, Step, Trace, scale_free, scales, still_scaled
from fallline.finding import Finding, Fix, Severity
from fallline.flow.calls import last_name
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below

_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_"})


class ClipScaled(Rule):
    code = "FL201"
    name = "clip-scaled"
    severity = Severity.ERROR
    yields_to = ("FL101", "FL103")
    yields_within = "line"
    what = """\
Gradients are clipped while they are still multiplied by the loss scale.

Between `scaler.scale(loss).backward()` and `scaler.unscale_(optimizer)` every gradient is 65536 times (by default) too large."""
    why = """\
The threshold that is really applied is `max_norm / scale`, so every update is clipped, and the threshold moves whenever the scale does.

With SGD the step becomes about 65,000 times too small and training stops. Adam divides by the size of the gradient, so it
continues to train, but sees only the direction of each gradient: the threshold no longer means anything. Nothing raises, and the loss does not diverge.
An error; with Adam and similar optimizers, a warning."""
    instead = """\
Unscale first, once for each update, then clip.

```python
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)      # does not unscale a second time
scaler.update()
```"""
    fix_safety = "Inserts the `unscale_` that the step after it would do anyway."
    facts = ("clip-scaled-freezes-sgd", "clip-scaled-does-not-diverge", "amp-order")
    references = ("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        yield from self._under_apex(trace)
        backward: Backward | None = None
        first: Clip | None = None
        for event, state in scales(trace):
            match event:
                case Backward():
                    backward, first = event, None
                case Clip() if backward is not None and not event.measures_only:
                    scaled = still_scaled(trace, event, state)
                    if scaled:
                        first = first or event
                        yield self._clipped(trace, event, scaled, backward, first)

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """Where no backward is in view: a clip, and then a scaler's step, in a file that never unscales."""
        text = module.source.text
        if "GradScaler" not in text or ("unscale" in text and _unscales(module)):
            return
        for clip in module.all(ast.Call):
            if last_name(clip) not in _CLIPS or "enabled=False" in text:
                continue
            function = module.function(clip)
            if any(
                module.function(step) is function and _comes_after(module, clip, step)
                for step in _scaled_steps(module)
            ):
                yield self.finding(
                    module.location(clip),
                    "Gradients are clipped and then stepped by a GradScaler, and this file never unscales them, so the threshold is really max_norm / scale. "
                    "Call scaler.unscale_(optimizer) before clipping.",
                    severity=Severity.WARNING,
                )

    def _under_apex(self, trace: Trace) -> Iterator[Finding]:
        for clip in trace.of(Clip):
            if clip.measures_only or clip.scaled is None:
                continue
            says = {
                "inside": "Gradients are clipped inside `amp.scale_loss`, which unscales them only where it ends, so the threshold is really max_norm / scale. "
                "Clip after the `with` block.",
                "copied": "At apex's level O2 the optimizer steps float32 copies of these parameters, and their own gradients stay scaled, so this clip changes nothing that is stepped. "
                "Clip `amp.master_params(optimizer)`.",
            }
            perhaps = clip.scaled == "perhaps"  # an option says the level, and most runs take O1
            yield self.finding(
                clip,
                says["copied" if perhaps else clip.scaled],
                severity=Severity.INFO if perhaps else Severity.WARNING,
            )

    def _clipped(
        self, trace: Trace, clip: Clip, scaled: list[str | None], backward: Backward, first: Clip
    ) -> Finding:
        step = trace.after(clip).of(Step).first
        related = {"backward": backward.at, "first": first.at}
        if step is not None and step.via == "scaler" and len(scaled) == 1:
            related["step"] = step.at
        optimizer = trace.type_of(scaled[0])
        return self.finding(
            clip,
            "Gradients are clipped while they are still multiplied by the loss scale, so the threshold is really "
            f"max_norm / scale: {_harm(optimizer)}. Call scaler.unscale_(optimizer) before clipping.",
            severity=Severity.WARNING if scale_free(optimizer) else None,
            related=related,
        )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        places = [finding.related.get(name) for name in ("first", "step", "backward")]
        calls = [module.call_at(p) if p and p.path == module.path else None for p in places]
        clip, step, backward = calls
        if clip is None or step is None or backward is None or len(step.args) != 1 or step.keywords:
            return None
        if not isinstance(step.func, ast.Attribute) or module.scope(clip) is not module.scope(step):
            return None
        meeting = _meeting(module, clip, step)
        if meeting is None:
            return None
        anchor, guard = meeting
        editor = Editor(module)
        in_order = (
            module.scope(backward) is not module.scope(clip) or backward.lineno < anchor.lineno
        )
        if not editor.alone(anchor) or not in_order:
            return None
        text = f"{module.segment(step.func.value)}.unscale_({module.segment(step.args[0])})"
        if guard is not None:
            text = f"if {module.segment(guard)}:\n    {text}"
        return Fix("Unscale the gradients before clipping", (editor.insert_before(anchor, text),))

    wrong = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL201
    scaler.step(optimizer)
    scaler.update()
""",
        AMP
        + """\
def clip(parameters, limit):
    torch.nn.utils.clip_grad_value_(parameters, limit)  # FL201


def update(loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    clip(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()


for inputs, targets in loader:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    update(loss)
""",
        """\
import torch

discriminator = torch.nn.Linear(8, 1)
generator = torch.nn.Linear(4, 8)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16)

for real in loader:
    fake = generator(torch.randn(16, 4))
    opt_d.zero_grad()
    loss_d = discriminator(fake.detach()).mean() - discriminator(real).mean()
    scaler.scale(loss_d).backward()
    scaler.unscale_(opt_d)
    torch.nn.utils.clip_grad_norm_(discriminator.parameters(), 1.0)
    scaler.step(opt_d)

    opt_g.zero_grad()
    loss_g = -discriminator(fake).mean()
    scaler.scale(loss_g).backward()
    torch.nn.utils.clip_grad_norm_(generator.parameters(), 1.0)  # FL201
    scaler.step(opt_g)
    scaler.update()
""",
    )
    right = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
        # a scaler that is off scales nothing
        AMP
        + """\
scaler = torch.amp.GradScaler("cpu", enabled=False)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
        # a scaler in a class of its own
        AMP
        + """\
class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cpu")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, need_update=True):
        self._scaler.scale(loss).backward()
        if need_update:
            if clip_grad is not None:
                self._scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)
            self._scaler.update()


loss_scaler = NativeScaler()
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
""",
        # two branches, each right on its own
        AMP
        + """\
import os

use_amp = os.environ.get("AMP") == "1"
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16, enabled=use_amp):
        loss = loss_fn(model(inputs), targets)
    if use_amp:
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
    else:
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if use_amp:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
""",
    )


def _unscales(module: Module) -> bool:
    """In code, not in a comment."""
    named = (n.attr for n in module.all(ast.Attribute))
    return any("unscale" in name for name in (*named, *module.functions))


def _comes_after(module: Module, clip: ast.Call, step: ast.Call) -> bool:
    """Further down, and not in the other arm of an `if` around the clip."""
    around = set(map(id, module.parents(step)))
    below: ast.AST = clip
    for up in module.parents(clip):
        if isinstance(up, ast.If) and id(up) in around:
            arm = up.body if below in up.body else up.orelse
            if not any(id(s) in around for s in arm):
                return False
        below = up
    return step.lineno > clip.lineno


def _scaled_steps(module: Module) -> Iterator[ast.Call]:
    """`scaler.step(optimizer)`."""
    for call in module.method_calls("step"):
        match call:
            case ast.Call(ast.Attribute(of), [_, *_]) if "scaler" in last_name(of).lower():
                yield call


def _meeting(
    module: Module, clip: ast.Call, step: ast.Call
) -> tuple[ast.stmt, ast.expr | None] | None:
    """The statement around the clip that is in one block with the step, and the test that guards the step there."""
    editor = Editor(module)
    steps = _around(module, step)
    for anchor in _around(module, clip):
        block = editor.block_of(anchor)
        partner = next((s for s in steps if s in block), None)
        if partner is None:
            continue
        if partner is steps[0]:
            return anchor, None
        guarded = isinstance(partner, ast.If) and partner is not anchor and steps[0] in partner.body
        if guarded and isinstance(partner, ast.If) and _is_plain(partner.test):
            return anchor, partner.test
        return None
    return None


def _around(module: Module, node: ast.AST) -> list[ast.stmt]:
    """The statements around a node, innermost first, up to its function."""
    found: list[ast.stmt] = [module.statement(node)]
    for up in module.parents(found[0]):
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            break
        if isinstance(up, ast.stmt):
            found.append(up)
    return found


def _is_plain(test: ast.expr) -> bool:
    """A test that can be asked twice: names and attributes, compared or negated."""
    return not below(test, ast.Call, ast.Await, ast.NamedExpr)


def _harm(optimizer: str) -> str:
    if optimizer == "SGD":
        return "SGD's steps become about 65,000 times too small"
    if scale_free(optimizer):
        return f"{optimizer} sees only the direction of the gradients, not their size"
    return "every update is clipped, by a threshold that moves with the scale"
