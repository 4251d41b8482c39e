"""One run of the code in one format: its loss, its gradients, every operation, and how far off each is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fallline.instruments.precision.formats import (
    Call,
    Change,
    Exchange,
    Format,
    Site,
    functions_exchanged,
    own_autocast,
)
from fallline.instruments.precision.record import (
    Operation,
    Recorder,
    Reference,
    relative_error,
    sample,
)
from fallline.instruments.untouched import World, loss_of, untouched
from fallline.replay.modules import Modules
from fallline.taps.frames import is_user_file, shown_path

__all__ = ["GRADIENT_TOLERANCE", "LOSS_TOLERANCE", "Gradients", "Outcome", "Probe"]

# What still counts as the same training, against float64; the loss is judged only where there are no gradients.
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 0.05, 0.3
GRADIENT_SAMPLE = 65_536
INITIAL_SCALE = 65_536.0  # torch.amp.GradScaler's
HALVINGS = 24


@dataclass
class Gradients:
    """All gradients together, at one loss scale."""

    scale: float
    underflow: float  # share of elements that are zero where float64's are not
    error: float | None  # relative to float64, over all elements
    nonfinite: int
    blame: Operation | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "underflow": self.underflow,
            "relative_error": self.error,
            "nonfinite": self.nonfinite,
        }


@dataclass
class Outcome:
    """What came of a run in one format."""

    format: Format
    loss: float | None = None
    loss_error: float | None = None
    operations: list[Operation] = field(default_factory=list)
    plain: Gradients | None = None  # without loss scaling
    scaled: Gradients | None = None  # at the largest scale that does not overflow, float16 only
    blame: Operation | None = None  # of a loss that is wrong
    changed: list[Call] = field(default_factory=list)  # where a change was tried
    raised: str | None = None
    raised_at: str | None = None

    @property
    def gradients(self) -> Gradients | None:
        return self.scaled or self.plain

    @property
    def loss_fails(self) -> bool:
        """Not finite; or far off, where there are no gradients to judge by. What trains is the gradient, not the loss."""
        if self.loss_error is None:
            return False
        if self.plain is not None:
            return not math.isfinite(self.loss_error)
        return not self.loss_error <= LOSS_TOLERANCE

    @property
    def works(self) -> bool:
        """Whether this format trains the same thing, loss scaling allowed."""
        return self.raised is None and not self.loss_fails and not _fail(self.gradients)

    @property
    def works_unscaled(self) -> bool:
        return self.raised is None and not self.loss_fails and not _fail(self.plain)

    @property
    def first_failure(self) -> Operation | None:
        """The first operation that failed; None where nothing did."""
        if self.loss_fails:
            return self.blame
        if _fail(self.plain) and self.plain is not None:
            return self.plain.blame
        return None

    def to_json(self) -> dict[str, Any]:
        first = self.first_failure
        return {
            "loss": self.loss,
            "loss_relative_error": self.loss_error,
            "works": self.works,
            "works_without_loss_scaling": self.works_unscaled,
            "gradients": self.plain.to_json() if self.plain else None,
            "gradients_scaled": self.scaled.to_json() if self.scaled else None,
            "raised": self.raised,
            "raised_at": self.raised_at,
            "first_failure": first.to_json() if first else None,
            "operations": [o.to_json() for o in self.operations],
        }


def _fail(gradients: Gradients | None) -> bool:
    if gradients is None:
        return False
    wrong = gradients.error is not None and not gradients.error <= GRADIENT_TOLERANCE
    return gradients.nonfinite > 0 or wrong


class Probe:
    """Runs the same code in one format after another; the float64 run comes first and is what the others are held against."""

    def __init__(self, run: Callable[[], Any], world: World, device: str) -> None:
        self.run = run
        self.world = world
        self.device = device
        self.reference = Reference()
        self.exact: Outcome | None = None
        self.exact_gradients: dict[int, tuple[Tensor, int]] = {}
        self.said_loss = True

    def measure(self, format: Format, changes: dict[Site, Change] | None = None) -> Outcome:
        """One run in this format, with changes tried at some sites."""
        outcome = Outcome(format)
        modules = Modules(self.world.roots)
        exchange = Exchange(self.world, format, modules, changes)
        recorder = Recorder(exchange, self.reference, is_reference=format.reference)
        with untouched(self.world):
            try:
                with (
                    functions_exchanged(exchange),
                    own_autocast(self.device, format.autocast),
                    modules.followed(),
                    recorder,
                    exchange,
                ):
                    loss, self.said_loss = loss_of(self.run)
                if loss is not None:
                    self._look(outcome, exchange, recorder, loss)
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                outcome.raised = " ".join(str(error).split())[:300]
                outcome.raised_at = _line_of(error)
        outcome.operations = recorder.operations
        outcome.changed = list(exchange.changed.values())
        return outcome

    def _look(self, outcome: Outcome, exchange: Exchange, recorder: Recorder, loss: Tensor) -> None:
        outcome.loss = float(loss.detach())
        if outcome.format.reference:
            self.exact = outcome
        elif self.exact is not None and self.exact.loss is not None:
            outcome.loss_error = relative_error(
                loss.detach().double().reshape(1).cpu(),
                torch.tensor([self.exact.loss], dtype=torch.float64),
            )
            outcome.blame = recorder.blame(loss) or recorder.flushed(loss)
        leaves = exchange.leaves
        if not leaves or not loss.requires_grad:
            return
        with recorder:
            made = self._backward(loss, leaves, 1.0)
        if outcome.format.reference:
            for (original, _), gradient in zip(leaves, made, strict=True):
                if gradient is not None:
                    bad = int((~torch.isfinite(gradient)).sum())
                    self.exact_gradients[id(original)] = (
                        sample(gradient, GRADIENT_SAMPLE).double(),
                        bad,
                    )
            return
        outcome.plain = self._judge(leaves, made, 1.0)
        outcome.plain.blame = self._blame(recorder, leaves, made)
        if outcome.format.half is torch.float16 and not outcome.loss_fails:
            outcome.scaled = self._scaled(loss, leaves)

    def _backward(
        self, loss: Tensor, leaves: list[tuple[Tensor, Tensor]], scale: float
    ) -> tuple[Tensor | None, ...]:
        # as GradScaler does: a float32 scale on the device, so that a half loss becomes float32
        whole = loss if scale == 1.0 else loss * torch.tensor(scale, device=loss.device)
        copies = [copy for _, copy in leaves]
        made = torch.autograd.grad(whole, copies, allow_unused=True, retain_graph=True)
        return tuple(g.to_dense() if g is not None and g.is_sparse else g for g in made)

    def _scaled(self, loss: Tensor, leaves: list[tuple[Tensor, Tensor]]) -> Gradients:
        """As GradScaler finds it: from 65536 down, halved while anything overflows."""
        scale = INITIAL_SCALE
        for _ in range(HALVINGS):
            found = self._judge(leaves, self._backward(loss, leaves, scale), scale)
            if not found.nonfinite:
                break
            scale /= 2
        return found

    def _judge(
        self,
        leaves: list[tuple[Tensor, Tensor]],
        made: tuple[Tensor | None, ...],
        scale: float,
    ) -> Gradients:
        rows = [r for r in self._rows(leaves, made, scale) if r is not None]
        off, whole = sum(r.off for r in rows), sum(r.whole for r in rows)
        alive, lost = sum(r.alive for r in rows), sum(r.lost for r in rows)
        error = (off / whole) ** 0.5 if whole > 0 else (0.0 if off == 0 else float("inf"))
        if error != error:
            error = float("inf")
        bad = sum(r.bad for r in rows)
        return Gradients(scale, lost / alive if alive else 0.0, error if alive else None, bad)

    def _rows(
        self,
        leaves: list[tuple[Tensor, Tensor]],
        made: tuple[Tensor | None, ...],
        scale: float,
    ) -> list[_Row | None]:
        rows: list[_Row | None] = []
        for (original, _), gradient in zip(leaves, made, strict=True):
            wanted = self.exact_gradients.get(id(original))
            if wanted is None or gradient is None:
                rows.append(None)
                continue
            there, meant = wanted
            here = sample(gradient, GRADIENT_SAMPLE).double() / scale
            fine, nonzero = torch.isfinite(there), there != 0
            rows.append(
                _Row(
                    float(torch.where(fine, here - there, 0).square().sum()),
                    float(torch.where(fine, there, 0).square().sum()),
                    int(nonzero.sum()),
                    int((nonzero & (here == 0)).sum()),
                    max(int((~torch.isfinite(gradient)).sum()) - meant, 0),
                )
            )
        return rows

    def _blame(
        self,
        recorder: Recorder,
        leaves: list[tuple[Tensor, Tensor]],
        made: tuple[Tensor | None, ...],
    ) -> Operation | None:
        """The first operation, in the order they ran, behind the gradients that are most wrong."""
        rows = self._rows(leaves, made, 1.0)
        worst = max((r.off for r in rows if r is not None), default=0.0)
        found = []
        for gradient, row in zip(made, rows, strict=True):
            if gradient is not None and row is not None and (row.bad or row.off >= 0.1 * worst):
                found.append(recorder.blame(gradient) or recorder.flushed(gradient))
        return min((o for o in found if o is not None), key=lambda o: o.index, default=None)

    def small_gradients(self) -> dict[str, float]:
        """Which share of the gradient elements float16 would lose, or keep with fewer digits, without loss scaling."""
        below = subnormal = count = 0
        limits = torch.finfo(torch.float16)
        for there, _ in self.exact_gradients.values():
            size = there.abs()
            alive = size > 0
            count += int(alive.sum())
            below += int((alive & (size < limits.smallest_normal * limits.eps / 2)).sum())
            subnormal += int((alive & (size < limits.smallest_normal)).sum())
        return {
            "zero_in_fp16": below / count if count else 0.0,
            "subnormal_in_fp16": subnormal / count if count else 0.0,
        }


@dataclass(slots=True)
class _Row:
    """One gradient against float64's."""

    off: float
    whole: float
    alive: int
    lost: int
    bad: int


def _line_of(error: BaseException) -> str | None:
    found, trace = None, error.__traceback__
    while trace is not None:
        if is_user_file(trace.tb_frame.f_code.co_filename):
            found = f"{shown_path(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
