"""FL309: the forward pass runs on model.module, so DDP never synchronises."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Backward, Forward, GradWrite, Opaque, Step, Trace, ZeroGrad
from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.losses import trained_names
from fallline.flow.ranks import is_distributed
from fallline.flow.recording import under_no_grad
from fallline.rule import Rule
from fallline.rules.distributed._specimen import DDP
from fallline.syntax import Module

_WRAPPERS = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel",
)


class ModuleBypassesDdp(Rule):
    code = "FL309"
    name = "module-bypasses-ddp"
    severity = Severity.ERROR
    what = """\
A training pass calls `model.module(...)`, past the DDP wrapper."""
    why = """\
DDP prepares the all-reduce in its own forward pass; without it the gradients are never averaged, and every rank trains a model of its own.

Nothing raises, and each rank's loss falls. For validation `model.module(...)` is fine."""
    instead = """\
Call the wrapped model.

```python
loss = loss_fn(model(inputs), targets)      # not model.module(inputs)
```"""

    def check(self, trace: Trace) -> Iterator[Finding]:
        pending: list[Forward] = []  # training passes since the last backward
        for event in trace.of(Forward, Backward):
            match event:
                case Forward() if event.may_train:
                    pending.append(event)
                case Backward():
                    bypassed = [f for f in pending if f.bypass and f.training is not False]
                    # and the model itself was called: its method is a criterion that it keeps
                    same = {f.model for f in bypassed} - {None}
                    through = any(
                        not f.bypass and (f.wrapper == "ddp" or f.model in same) for f in pending
                    )
                    # the gradients may be averaged by hand before the step
                    by_hand = trace.after(event).until(Step).of(GradWrite, Opaque)
                    # an attack, whose gradients are cleared before anything steps with them
                    dropped = isinstance(trace.after(event).of(ZeroGrad, Step).first, ZeroGrad)
                    if bypassed and not through and not by_hand and not dropped:
                        yield from map(self._bypassed, bypassed)
                    pending = []

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """`G.module(z)` of a wrapped model that is handed over, in a function that runs the backward."""
        if not is_distributed(module) or any(True for _ in module.calls(*_WRAPPERS)):
            return  # where the wrapper is in view, its events say more
        for call in module.method_calls("module"):
            function = module.function(call)
            if function is None or under_no_grad(module, call) or not call.args:
                continue
            statement = module.statement(call)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            trained = trained_names(module, module.scope(call))
            if any(trained.get(last_name(t), 0) > call.lineno for t in targets):
                yield self.finding(
                    module.location(call),
                    "This training pass calls model.module, past DDP, so the gradients are never averaged over the ranks and their models drift apart. "
                    "Call the wrapped model.",
                    severity=Severity.WARNING,
                )

    def _bypassed(self, forward: Forward) -> Finding:
        return self.finding(
            forward,
            "This training pass calls model.module, past DDP, so the gradients are never averaged over the ranks and their models drift apart. "
            "Call the wrapped model.",
        )

    wrong = (
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    outputs = model.module(inputs)  # FL309
    loss_fn(outputs, targets).backward()
    optimizer.step()
""",
        DDP
        + """\
net = model.module


def train_one_epoch(net):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = loss_fn(net(inputs), targets)  # FL309
        loss.backward()
        optimizer.step()


train_one_epoch(net)
""",
    )
    right = (
        # validation
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    for inputs, targets in loader:
        model.module(inputs)
""",
        # the module is saved, not called
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
weights = model.module.state_dict()
print(sum(p.numel() for p in model.module.parameters()), len(weights))
""",
        # averaged by hand
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    loss_fn(model.module(inputs), targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())
    optimizer.step()
""",
    )
