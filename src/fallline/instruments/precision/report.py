"""What a precision probe answers with: the verdict, then the numbers behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from fallline.instruments.frame import human_seconds
from fallline.instruments.precision.changes import Repair
from fallline.instruments.precision.device import Matmul
from fallline.instruments.precision.record import Operation
from fallline.instruments.precision.run import GRADIENT_TOLERANCE, LOSS_TOLERANCE, Outcome
from fallline.instruments.precision.verdict import Verdict
from fallline.show.numbers import json_numbers

__all__ = ["PrecisionReport"]

SHOWN = 8


@dataclass
class PrecisionReport:
    """float16, bfloat16 or neither, for this code on this device."""

    device: str
    device_name: str
    native: dict[str, bool | None]
    verdict: Verdict | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    repairs: dict[str, Repair] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    matmuls: list[Matmul] = field(default_factory=list)
    small_gradients: dict[str, float] = field(default_factory=dict)
    loss_given: bool = True  # else the mean square of the outputs stood for it
    without_loss: str = ""  # and why
    reference: str = "fp64"
    notes: list[str] = field(default_factory=list)
    partial: bool = False

    @property
    def first_failure(self) -> Operation | None:
        """The first operation that fails, in the first format that does."""
        for name in ("fp16 autocast", "bf16 autocast", "fp16 pure", "bf16 pure", "fp32"):
            outcome = self.outcomes.get(name)
            if outcome is not None and outcome.first_failure is not None and not outcome.works:
                return outcome.first_failure
        return None

    @property
    def speedups(self) -> dict[str, float]:
        whole = self.seconds.get("fp32")
        return {n: whole / s for n, s in self.seconds.items() if n != "fp32"} if whole else {}

    @property
    def dynamic_range(self) -> dict[str, Any]:
        """From the float32 run: the sizes that numbers really have, and the room that float16 leaves above them."""
        outcome = self.outcomes.get("fp32")
        if outcome is None:
            return {}
        found: dict[str, Any] = {}
        limits = torch.finfo(torch.float16)
        for phase in ("forward", "backward"):
            made = [o.made for o in outcome.operations if o.phase == phase and o.made is not None]
            if not made:
                continue
            largest = max(r.largest for r in made)
            smallest = min((r.smallest for r in made if r.smallest > 0), default=0.0)
            found[phase] = {
                "smallest": smallest,
                "largest": largest,
                "binades": math.log2(largest / smallest) if smallest and largest else 0.0,
                "fp16_headroom": limits.max / largest if largest else None,
            }
        return found

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "verdict": self.verdict.to_json() if self.verdict else None,
            "device": self.device,
            "device_name": self.device_name,
            "torch": torch.__version__,
            "native": self.native,
            "reference": self.reference,
            "tolerance": {"loss": LOSS_TOLERANCE, "gradients": GRADIENT_TOLERANCE},
            "loss_given": self.loss_given,
            "formats": {n: o.to_json() for n, o in self.outcomes.items()},
            "changes": {n: r.to_json() for n, r in self.repairs.items()},
            "dynamic_range": self.dynamic_range,
            "gradients_without_scaling": self.small_gradients,
            "matmuls": [m.to_json() for m in self.matmuls],
            "seconds": self.seconds,
            "speedups": self.speedups,
            "notes": self.notes,
            "partial": self.partial,
        }
        return json_numbers(found)  # type: ignore[no-any-return]

    def text(self) -> str:
        lines = []
        if self.partial:
            lines += ["stopped before everything was measured; this is what there is", ""]
        if self.verdict is not None:
            lines += [f"FP16, BF16 or neither: {self.verdict.says}", ""]
        lines += [
            f"on {self.device_name} ({self.device}), torch {torch.__version__}; {self._native()}"
        ]
        if not self.loss_given:
            why = self.without_loss or "none was returned"
            lines.append(f"without the loss ({why}): the mean square of the outputs stood for it")
        lines += [*self.notes, "", *self._formats(), *self._failures(), *self._ranges()]
        lines += [*self._matmuls(), *self._operations()]
        return "\n".join(lines).rstrip() + "\n"

    def _native(self) -> str:
        words = {True: "in hardware", False: "emulated", None: "not known"}
        return ", ".join(f"{name} {words[has]}" for name, has in self.native.items())

    def _formats(self) -> list[str]:
        rows: list[tuple[str, ...]] = [
            ("format", "loss off by", "gradients off by", "gradients lost", "scaled", "speed", "")
        ]
        for name, o in self.outcomes.items():
            plain, scaled = o.plain, o.scaled
            rows.append(
                (
                    name,
                    _size(o.loss_error),
                    _size(o.gradients.error if o.gradients else None),
                    _share(plain.underflow if plain else None),
                    f"{_share(scaled.underflow)} at {scaled.scale:g}" if scaled else "",
                    f"{self.speedups[name]:.2f}x" if name in self.speedups else "",
                    "raises" if o.raised else "" if o.works else "fails",
                )
            )
        lines = _table(rows)
        if "fp32" in self.seconds:
            where = "" if self.device != "cpu" else " on this CPU"
            lines.append(
                f"  speed{where}: forward and backward, fp32 takes {human_seconds(self.seconds['fp32'])}"
            )
        return [*lines, ""]

    def _failures(self) -> list[str]:
        lines = []
        for name, outcome in self.outcomes.items():
            first, repair = outcome.first_failure, self.repairs.get(name)
            if outcome.raised is not None:
                lines += [f"{name}: raises at {outcome.raised_at or '?'}: {outcome.raised}"]
            elif first is not None:
                lines += [
                    f"{name}: the first operation that fails is {_named(first)}",
                    f"  {_ranges_of(first)}",
                ]
            if repair is not None:
                sure = "tried, works" if repair.verified else "not verified"
                lines += [f"  change: {repair.says} [{sure}{_after(repair)}]"]
        return [*lines, ""] if lines else []

    def _ranges(self) -> list[str]:
        lines = []
        for phase, found in self.dynamic_range.items():
            room = found["fp16_headroom"]
            above = f"; float16 has room for {room:.3g} times the largest" if room else ""
            lines.append(
                f"{phase} numbers lie from {found['smallest']:.2g} to {found['largest']:.3g} ({found['binades']:.0f} binades){above}"
            )
        if self.small_gradients:
            lines.append(
                f"gradients that float16 cannot hold without loss scaling: {_share(self.small_gradients['zero_in_fp16'])} become zero, "
                f"{_share(self.small_gradients['subnormal_in_fp16'])} lose digits"
            )
        return [*lines, ""] if lines else []

    def _matmuls(self) -> list[str]:
        if not self.matmuls:
            return []
        odd = [m for m in self.matmuls if not m.aligned]
        bytes_odd = sum(not m.aligned_one_byte for m in self.matmuls)
        lines = [
            f"matrix products: {len(self.matmuls)}, of which {len(odd)} are not in multiples of 8 (fp16, bf16) "
            f"and {bytes_odd} not in multiples of 16 (types of one byte)"
        ]
        for m in odd[:SHOWN]:
            _, rows, inner, columns = m.shape
            _, r, i, c = m.padded
            gain = ""
            if m.seconds and m.padded_seconds:
                gain = f"; measured {human_seconds(m.seconds)}, padded {human_seconds(m.padded_seconds)} ({m.seconds / m.padded_seconds:.2f}x)"
            where = f"{m.path}:{m.line}" if m.path else ""
            lines.append(
                f"  {m.op} {m.phase} {m.module or ''} {where}: {rows}x{inner}x{columns} → {r}x{i}x{c}, {m.cost:+.1%} arithmetic{gain}"
            )
        return [*lines, ""]

    def _operations(self) -> list[str]:
        outcome = self.outcomes.get("fp16 autocast") or self.outcomes.get("bf16 autocast")
        if outcome is None or not outcome.operations:
            return []
        types: dict[str, dict[str, int]] = {}
        for o in outcome.operations:
            if o.op != "to":
                per = types.setdefault(o.dtype, {})
                per[o.op] = per.get(o.op, 0) + 1
        lines = [f"{outcome.format.name} ran"]
        for dtype, ops in sorted(types.items()):
            names = ", ".join(
                f"{n} ({c})" for n, c in sorted(ops.items(), key=lambda x: -x[1])[:12]
            )
            lines.append(f"  in {dtype}: {names}")
        return lines


def _size(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows
    ]


def _named(o: Operation) -> str:
    at = o.call.at if o.call is not None else None
    where = f" at {at.path}:{at.line}" if at else ""
    module = f" in module {o.module}" if o.module else ""
    kind = "the backward of " if o.phase == "backward" else ""
    function = f" ({kind}`{o.call.function}`)" if o.call and o.call.function != o.op else ""
    back = " in the backward pass" if o.phase == "backward" else ""
    return f"`{o.op}`{function}{module}{where}{back}, run in {o.dtype}"


def _ranges_of(o: Operation) -> str:
    given = f"in: {o.given.smallest:.3g} to {o.given.largest:.3g}" if o.given else "in: nothing"
    made = f"out: {o.made.smallest:.3g} to {o.made.largest:.3g}" if o.made else "out: nothing"
    parts = [given, made]
    if o.overflow:
        parts.append(f"{o.overflow} overflow")
    if o.underflow:
        parts.append(f"{o.underflow:.1%} underflow to zero")
    if o.error is not None and math.isfinite(o.error):
        parts.append(f"off by {o.error:.1e}")
    return ", ".join(parts)


def _after(repair: Repair) -> str:
    if repair.outcome is None or repair.outcome.loss_error is None:
        return ""
    gradients = repair.outcome.gradients
    text = f": loss off by {repair.outcome.loss_error:.1e}"
    if gradients is not None and gradients.error is not None:
        text += f", gradients by {gradients.error:.1e}"
    return text
