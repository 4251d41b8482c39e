"""FL122: parameters whose gradient is None or exactly zero, update after update."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule

__all__ = ["DeadParameters"]

_WITH, _FROZEN = 1.0, 2.0


class DeadParameters(Rule):
    code = "FL122"
    name = "dead-parameters"
    severity = Severity.WARNING
    # a learning rate that is far too large kills units, and parameters that were replaced get no gradient: advice about dead ones does not help
    yields_to = ("FL123", "FL133", "FL306")
    what = "Parameters that an optimizer holds get no gradient, or exactly zero, in nearly every recent update."
    why = (
        "They stay as they were initialised: a layer that the forward pass never reaches, a detached branch, or units that died.\n"
        "Frozen parameters, rarely chosen experts and biases that cancel by structure are not reported."
    )
    instead = (
        "Call the layer in forward, remove the `.detach()` or `no_grad` that cuts it off, set `requires_grad_(False)` if it is "
        "meant to stay fixed, or lower the learning rate if its units died."
    )
    wrong = (
        """\
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(8, 8)
        self.forgotten = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.relu(self.used(x)))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for update in range(80):
    inputs = torch.randn(32, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL122
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
model[0].requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for update in range(80):
    inputs = torch.randn(32, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    least_updates = 30
    least_samples = 8
    share = 0.95  # of the recent samples

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            samples = track.samples
            if not samples or samples[-1].index - samples[0].index < self.least_updates - 1:
                continue
            layout = samples[-1].layout
            recent = self._recent([s for s in samples if s.layout.id == layout.id])
            if not recent:
                continue
            dead = self._dead(layout.parameters, recent, samples)
            if dead:
                first = recent[0].index
                yield self.finding(
                    track.at,
                    f"{_list(dead)} got no gradient in updates {first} to {recent[-1].index}{self._why(dead, layout.parameters)}",
                    step=recent[-1].index,
                    parameters=dead[:50],
                    count=len(dead),
                    updates=recent[-1].index - first + 1,
                    samples=len(recent),
                    threshold=self.share,
                    optimizer=track.optimizer,
                    rank=track.rank,
                )

    @staticmethod
    def _why(dead: list[str], parameters: list[Any]) -> str:
        homeless = {p.name for p in parameters if not p.module}
        if homeless.issuperset(dead) and len(homeless) < len(parameters):
            return (
                ", and no module holds them: after `self.weight = nn.Parameter(...)` in forward, the optimizer still steps the old tensor. "
                "Change it in place (`copy_`), or keep it as a buffer."
            )
        return f": {_plural(len(dead))} the loss does not reach, or whose units died. Use them in forward, or set requires_grad_(False)."

    def _recent(self, samples: list[Any]) -> list[Any]:
        """The last samples that reach back far enough and are enough; none when there are too few."""
        for count in range(self.least_samples, len(samples) + 1):
            recent = samples[-count:]
            if recent[-1].index - recent[0].index >= self.least_updates - 1:
                return recent
        return []

    def _dead(self, parameters: list[Any], recent: list[Any], samples: list[Any]) -> list[str]:
        states = [s.column("state") for s in recent]
        largest = [s.column("largest") for s in recent]
        live = [
            [
                state[i] == _WITH and large[i] != 0
                for state, large in zip(states, largest, strict=True)
            ]
            for i in range(len(parameters))
        ]
        frozen = [any(state[i] == _FROZEN for state in states) for i in range(len(parameters))]
        if not any(any(row) for row in live):
            return []  # nothing at all gets a gradient: another rule's mistake
        silent = [
            i
            for i in range(len(parameters))
            if not frozen[i] and sum(live[i]) <= (1 - self.share) * len(recent)
        ]
        conditional = {
            _family(p.name)
            for p, row, f in zip(parameters, live, frozen, strict=True)
            if not f and any(row) and not all(row)
        }
        dead = []
        for i in silent:
            parameter = parameters[i]
            if "expert" in parameter.name.lower() or _family(parameter.name) in conditional:
                continue  # chosen by a router, now and then
            if states[-1][i] != _WITH and self._lived(samples, parameter.name):
                continue  # not part of this phase of the training
            dead.append(i)
        # biases that cancel (before a normalisation, of attention keys) are zero while their weight is not
        matrices = {
            parameters[i].name.rpartition(".")[0] for i in dead if len(parameters[i].shape) >= 2
        }
        return [
            parameters[i].name
            for i in dead
            if len(parameters[i].shape) >= 2 or parameters[i].name.rpartition(".")[0] in matrices
        ]

    @staticmethod
    def _lived(samples: list[Any], name: str) -> bool:
        """Whether this parameter ever had a gradient that was not zero."""
        for sample in samples:
            for parameter, large in zip(
                sample.layout.parameters, sample.column("largest"), strict=True
            ):
                if parameter.name == name and large == large and large > 0:
                    return True
        return False


def _family(name: str) -> str:
    """`blocks.3.fc.weight` and `blocks.5.fc.weight` are of one family."""
    return re.sub(r"\d+", "#", name)


def _list(names: list[str]) -> str:
    shown = ", ".join(f"'{n}'" for n in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _plural(count: int) -> str:
    return "a parameter that" if count == 1 else f"{count} parameters that"
