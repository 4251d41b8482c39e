"""For Accelerate:

    accelerator = watched(Accelerator())                              # to accelerator.end_training(), or the program's end
    accelerator = exact_accumulation(Accelerator(gradient_accumulation_steps=4))

`accelerator.backward` divides the loss by `gradient_accumulation_steps` itself; the taps know that, and `exact_accumulation` takes it
into account. There is no tracker: Accelerate starts trackers on the main process only, and ranks are to be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fallline.errors import EngineError
from fallline.integrations._exact import ExactWindow
from fallline.integrations._watching import Watching

__all__ = ["exact_accumulation", "watched"]


def watched(accelerator: Any, **options: Any) -> Any:
    """The same accelerator, watched from here to `accelerator.end_training()` on every rank. Options as in `Watching`.

    `accelerator.watching` has the findings and the run folder afterwards.
    """
    watching = Watching(**options)
    end_training = accelerator.end_training

    def end() -> None:
        watching.end()
        end_training()

    accelerator.end_training = end
    accelerator.watching = watching
    watching.begin()
    return accelerator


def exact_accumulation(accelerator: Any) -> Any:
    """The same accelerator, whose accumulated gradients are those of the one big batch.

    Accelerate divides every loss by `gradient_accumulation_steps`. The remainder at the end of the data comes out too small by that,
    and means over different numbers of tokens count alike. Here they are divided once, by what was really accumulated on all ranks:

        with accelerator.accumulate(model):
            accelerator.backward(loss)                        # every micro-batch counts the same
            accelerator.backward(loss, mean_over=tokens)      # the loss is a mean over this many things
    """
    from accelerate.utils import DistributedType

    if accelerator.distributed_type not in (
        DistributedType.NO,
        DistributedType.MULTI_CPU,
        DistributedType.MULTI_GPU,
    ):
        raise EngineError(
            f"exact_accumulation works on one device and with DDP, not with {accelerator.distributed_type}, which divides by itself"
        )
    _Exact(accelerator).install()
    return accelerator


class _Exact:
    """The windows of one accelerator, fed by its `accumulate` and `backward`."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self._accumulate = accelerator.accumulate
        self._backward = accelerator.backward
        self._windows: dict[tuple[int, ...], ExactWindow] = {}  # by the models they are for
        self._models: tuple[Any, ...] = ()  # in accumulate(), before backward

    def install(self) -> None:
        self.accelerator.accumulate = self.accumulate
        self.accelerator.backward = self.backward

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        with self._accumulate(*models):
            self._models = models
            try:
                yield
            finally:
                self._models = ()

    def backward(self, loss: Any, *, mean_over: Any = None, **kwargs: Any) -> None:
        models, self._models = self._models, ()
        if not models:
            raise EngineError(
                "call accelerator.backward once in each `with accelerator.accumulate(model):`, with the sum of your losses: "
                "exact accumulation counts one micro-batch for one backward"
            )
        window = self._windows.get(tuple(map(id, models)))
        if window is None:
            window = ExactWindow(models, self.accelerator.device)
            self._windows[tuple(map(id, models))] = window
        factor = window.add(mean_over)
        self._backward(loss if factor is None else loss * factor, **kwargs)
        if self.accelerator.sync_gradients:
            # complete and synchronised, still with the loss scale: before anybody clips
            parameters = (p for model in models for p in model.parameters())
            window.complete(parameters, self.accelerator.gradient_accumulation_steps)
