"""Runs a script until its first batches have reached the model, and says what they teach.

torch is not imported here before the script does it: it may have something to set first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fallline.instruments.frame import Progress
from fallline.instruments.script import NothingMeasured, Ran, Script, run_until

if TYPE_CHECKING:
    from fallline.instruments.data.observe import Hearing
    from fallline.instruments.data.report import Taught
    from fallline.taps.patches import Patches

__all__ = ["data_of_script"]


def data_of_script(
    target: Script | Callable[[], object],
    *,
    batches: int = 4,
    tokenizer: Any = None,
    progress: Progress | None = None,
) -> tuple[Taught, Ran]:
    """Run it until `batches` batches were learned from; what they teach, and how the run ended."""
    hearings: list[Hearing] = []

    def make() -> Hearing:
        from fallline.instruments.data.observe import Hearing  # imports torch

        hearings.append(Hearing(batches))
        return hearings[0]

    def listen(patches: Patches, ran: Ran) -> None:
        hearings[0].subscribe(patches)

    # evaluations before the training do not count as updates: the listener says when it has enough
    ran = run_until(target, make, updates=64 * batches, ready=listen, progress=progress)
    heard = hearings[0] if hearings else None
    if heard is None or not _anything(heard):
        raise NothingMeasured(ran, "before a model was called with gradients on")
    from fallline.instruments.data.teach import taught  # imports torch

    return taught(heard, tokenizer, ran), ran


def _anything(heard: Hearing) -> bool:
    listener = heard.listener
    learned = listener.lessons or listener.learner.models or listener.policies.names
    return bool(learned or listener.observed)
