"""What an instrument hears of a run, and how the run ended. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fallline.errors import UsageError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["Enough", "NothingMeasured", "Observer", "Ran"]


class Enough(SystemExit):
    """Ends a script that has run long enough. A SystemExit: frameworks clean up and let it pass."""


class Observer:
    """What a run tells. Everything does nothing here; an instrument overrides what it is interested in.

    Every method is called in the training thread, before or after what it is named for. The tensors handed in must not be
    changed, and no random number drawn. What a method itself calls (the model, a backward) is not reported.
    """

    over = False  # enough was seen: the script may end before it has made all its updates

    def started(self) -> None:
        """torch is imported, nothing of the script has used it yet."""

    def optimizer_made(self, optimizer: Optimizer) -> None: ...
    def epoch_begins(self, loader: Any) -> None: ...
    def indices_taken(self, iterator: Any, indices: Any) -> None:
        """A loader has taken the indices of a batch from its sampler: one, or a list."""

    def batch_begins(self, iterator: Any) -> None: ...
    def batch_ends(self, iterator: Any, batch: Any) -> None: ...
    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called from outside of any module."""

    def forward_ends(self, model: nn.Module, output: Any) -> None: ...
    def module_begins(self, module: nn.Module) -> None:
        """Any module is called, the outermost too."""

    def module_ends(self, module: nn.Module) -> None: ...
    def backward_begins(self, loss: Any) -> None: ...
    def backward_ends(self) -> None: ...
    def step_begins(self, optimizer: Optimizer) -> None: ...
    def step_ends(self, optimizer: Optimizer) -> None: ...
    def failed(self, error: BaseException) -> None:
        """The script raised; its frames are still there."""

    def ended(self, ran: Ran) -> None:
        """It is over, the taps are gone, and `__main__` is still the script's."""

    def update_ends(self, number: int) -> None:
        """So many updates are done (the most steps of one optimizer; steps that a scaler skipped count)."""


@dataclass
class Ran:
    """How a run ended, and what trained in it."""

    updates: int = 0
    enough: bool = False  # ended by us, after as many updates as were asked for
    interrupted: bool = False  # Ctrl-C
    status: int = 0  # the script's own exit status
    error: BaseException | None = None  # what it raised, if anything
    models: list[nn.Module] = field(default_factory=list)  # called with gradients on, in order
    optimizers: list[Optimizer] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)  # iterated, in order

    @property
    def partial(self) -> bool:
        """The script neither came to its own end nor to the number of updates."""
        return not self.enough and (self.interrupted or self.status != 0 or self.error is not None)


class NothingMeasured(UsageError):
    """The script was over before there was anything to say about it. `status` is its own where it failed."""

    def __init__(self, ran: Ran, before: str) -> None:
        """`before`: what it did not come to, as in "before the backward of update 1"."""
        did = f"{ran.updates} update{'' if ran.updates == 1 else 's'}"
        self.status = ran.status or 2
        if ran.status:
            text = f"the script failed after {did}, {before}: there is nothing to measure"
        elif ran.updates == 0:
            text = (
                "the script ended without an update (no optimizer's step() was seen): there is nothing to measure. "
                "Name the script that trains, with the arguments that make it train"
            )
        else:
            text = f"the script ended after {did}, {before}: choose fewer --updates, or let it train longer"
        super().__init__(text)
