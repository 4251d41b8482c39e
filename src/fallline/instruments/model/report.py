"""What `fallline measure model` answers with: what is wrong first, then the layers from the input to the loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from fallline.instruments.model.flow import Flow, Layer, Silent
from fallline.instruments.model.registered import Unregistered
from fallline.show.numbers import json_numbers

__all__ = ["ModelReport"]

UNEVEN = 1e3  # between the first layer and the last: healthy models stay within a hundred
ENOUGH_VALUES = 32  # a unit that was silent for fewer values may just not have been asked
SILENT_SHARE = 0.05
_SHOWN = 10
_SEVERAL = 4
_LAYERS = 40


@dataclass
class ModelReport:
    """A model, looked at and run once, forward and backward."""

    name: str
    parameters: int
    trainable: int
    unregistered: list[Unregistered]
    shared: list[list[str]]
    frozen: list[str] = field(default_factory=list)
    not_optimized: list[str] = field(default_factory=list)
    elsewhere: int = 0  # parameters that the script's optimizers hold beside this model's
    batch: str = ""
    flow: Flow | None = None
    tried: dict[str, Any] = field(default_factory=dict)  # another initialisation, measured
    partial: bool = False

    def to_json(self) -> dict[str, Any]:
        flow = self.flow
        found: dict[str, Any] = {
            "model": self.name,
            "torch": torch.__version__,
            "parameters": self.parameters,
            "trainable": self.trainable,
            "findings": self.findings,
            "unregistered": [u.to_json() for u in self.unregistered],
            "shared": self.shared,
            "frozen": self.frozen,
            "not_optimized": self.not_optimized,
            "optimized_elsewhere": self.elsewhere,
            "batch": self.batch,
            "partial": self.partial,
        }
        if flow is not None:
            found |= {
                "without_gradient": flow.without_gradient,
                "zero_gradient": flow.zero_gradient,
                "not_called": flow.not_called,
                "layers": [x.to_json() for x in flow.layers],
                "activations": [a.to_json() for a in flow.activations],
                "gradient_early_to_late": flow.early_to_late,
                "another_initialisation": self.tried or None,
                "loss": flow.loss,
                "loss_given": flow.loss_given,
            }
        return {k: json_numbers(v) for k, v in found.items()}

    @property
    def findings(self) -> list[str]:
        """What is wrong, in sentences, with what to do."""
        found = [
            f"{u.path} is not registered: {u.what}, {_count(u.parameters)} that parameters(), to() and state_dict() do not see. {u.fix}"
            for u in self.unregistered
            if u.kind != "tensor"
        ]
        found += [
            f"{u.path} is a {u.what}: to() does not move it. {u.fix}"
            for u in self.unregistered
            if u.kind == "tensor"
        ]
        if self.not_optimized:
            found.append(
                f"in no optimizer, so never trained: {_some(self.not_optimized)}. Hand model.parameters() to the optimizer, or freeze them with requires_grad_(False)"
            )
        return found + (self._flow_findings(self.flow) if self.flow is not None else [])

    def _flow_findings(self, flow: Flow) -> list[str]:
        found = []
        if flow.not_called:
            found.append(
                f"never called in this batch: {_some(flow.not_called)}. Remove them, or call them: DDP needs find_unused_parameters otherwise"
            )
        called = [
            n for n in flow.without_gradient if not any(_within(n, m) for m in flow.not_called)
        ]
        if called:
            found.append(
                f"the loss does not depend on {_some(called)}: a detach, no_grad, or an output that is not used is in between"
            )
        if flow.zero_gradient:
            found.append(
                f"a gradient of exactly zero everywhere: {_some(flow.zero_gradient)}. Every unit behind them is dead or saturated"
            )
        silent = [a for a in flow.activations if _many(a)]
        found += [_dead(a) for a in silent] if len(silent) <= _SEVERAL else [_many_dead(flow)]
        ratio = flow.early_to_late
        if ratio is not None and not 1 / UNEVEN <= ratio <= UNEVEN:
            found.append(self._uneven(flow, ratio))
        return found

    def _uneven(self, flow: Flow, ratio: float) -> str:
        deep = flow.depth
        word = "vanishes" if ratio < 1 else "explodes"
        step = ratio ** (1 / (len(deep) - 1)) if ratio > 0 else 0.0
        text = (
            f"the gradient {word} with depth: at {deep[0].name} it is {ratio:.1e} times that at {deep[-1].name} "
            f"({len(deep)} layers, a factor of {step:.2f} each)"
        )
        if self.tried:
            text += f". With {self.tried['how']} it is {self.tried['early_to_late']:.1e} (tried on a copy)"
        advice = "initialise for the activation" if not self.tried or self.tried["helps"] else ""
        return f"{text}. {advice or 'Normalisation and residual connections'}: `fallline ask 'vanishing gradients'`"

    def text(self) -> str:
        lines = (
            ["stopped before everything was measured; this is what there is", ""]
            if self.partial
            else []
        )
        findings = self.findings
        head = f"{self.name}: {_count(self.parameters)}, {self.trainable:,} trainable"
        lines += [
            f"{head}; {len(findings) or 'nothing'} {'found' if findings else 'wrong was found'}",
            "",
        ]
        lines += [*(f"- {f}" for f in findings), *([""] if findings else [])]
        if self.shared:
            lines += [*(f"shared: {' = '.join(group)}" for group in self.shared), ""]
        if self.frozen:
            lines += [f"frozen: {_some(self.frozen)}", ""]
        if self.elsewhere:
            lines += [
                f"beside it the script trains {_count(self.elsewhere)} that are not this model's: it is the one of the first backward",
                "",
            ]
        flow = self.flow
        if flow is not None and flow.layers:
            loss = "" if flow.loss_given else "; the mean square of the outputs stood for the loss"
            lines += [f"one batch ({self.batch}{loss}), from the input to the loss:"]
            lines += _layers(flow.layers)
        return "\n".join(lines).rstrip() + "\n"


def _layers(layers: list[Layer]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("layer", "kind", "signal in", "out", "gain", "gradient at its output", "of its weights")
    ]
    shown = (
        layers if len(layers) <= _LAYERS else [*layers[: _LAYERS // 2], *layers[-_LAYERS // 2 :]]
    )
    for x in shown:
        numbers = (x.signal_in, x.signal_out, x.gain, x.gradient_out, x.weight_gradient)
        rows.append(
            (x.name or "(model)", x.kind, *("" if n is None else f"{n:.2g}" for n in numbers))
        )
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = [
        "  " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows
    ]
    if len(shown) < len(layers):
        lines.insert(1 + _LAYERS // 2, f"  ... {len(layers) - len(shown)} more")
    return lines


def _dead(a: Silent) -> str:
    where = f" at {a.at.path}:{a.at.line}" if a.at else ""
    module = f" in {a.module}" if a.module else ""
    few = (
        ""
        if a.seen >= ENOUGH_VALUES
        else f" (each was asked only {a.seen} times: try a larger batch)"
    )
    if a.dead:
        units = ", ".join(map(str, a.dead[:_SHOWN])) + (" ..." if len(a.dead) > _SHOWN else "")
        return (
            f"{len(a.dead)} of {a.units} units of `{a.op}`{module}{where} are dead: zero for all {a.seen} values (units {units}){few}. "
            "A smaller learning rate, a bias that is not negative, or leaky_relu"
        )
    return (
        f"{a.saturated} of {a.units} units of `{a.op}`{module}{where} are saturated for all {a.seen} values{few}. "
        "Smaller weights or a normalisation before it"
    )


def _many(a: Silent) -> bool:
    """A unit or two that a batch does not reach are not a mistake."""
    return len(a.dead) + a.saturated >= SILENT_SHARE * a.units


def _many_dead(flow: Flow) -> str:
    """Where a signal is the same for the whole batch, half of all units are: one sentence is enough."""
    silent = [a for a in flow.activations if _many(a)]
    worst = max(silent, key=lambda a: (len(a.dead) + a.saturated) / a.units)
    lost = sum(len(a.dead) + a.saturated for a in silent)
    return (
        f"{lost} of {sum(a.units for a in flow.activations)} units are dead or saturated, in {len(silent)} of {len(flow.activations)} "
        f"activations; the first: {_dead(silent[0])}. The worst: {_dead(worst)}"
    )


def _within(parameter: str, module: str) -> bool:
    return parameter.startswith(module + ".") or not module


def _count(number: int) -> str:
    return f"{number:,} parameter{'' if number == 1 else 's'}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
