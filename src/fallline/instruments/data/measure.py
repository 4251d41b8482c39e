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
    from fallline.taps.tap import Subscription

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
    taps: list[Subscription] = []

    def make() -> Hearing:
        from fallline.instruments.data.observe import Hearing

        hearings.append(Hearing(batches))
        return hearings[0]

    def listen(patches: Patches, ran: Ran) -> None:
        from fallline.taps.losses import LOSS
        from fallline.taps.tap import Subscription
        from fallline.taps.vocabulary import RESIZED

        heard = Subscription(rebind=True)
        heard.before(LOSS, hearings[0].loss_begins)
        heard.after(RESIZED, hearings[0].resized)
        heard.start()
        taps.append(heard)
        patches.on_removal(heard.stop)

    # evaluations before the training do not count as updates: the listener says when it has enough
    ran = run_until(target, make, updates=64 * batches, ready=listen, progress=progress)
    heard = hearings[0] if hearings else None
    if heard is None or not _anything(heard):
        raise NothingMeasured(ran, "before a model was called with gradients on")
    from fallline.instruments.data.teach import taught

    return taught(heard, tokenizer, ran), ran


def _anything(heard: Hearing) -> bool:
    listener = heard.listener
    return bool(listener.lessons or listener.observed or listener.learner.models)
