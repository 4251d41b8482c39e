"""fallline's own engine: the Stepper divides, clips, steps and clears; its clip is torch's."""

from __future__ import annotations

from fallline.api.call import Call
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.torch.functions import FUNCTIONS
from fallline.api.values import Value
from fallline.events import Opaque

__all__ = ["LIBRARY"]


def _stepper(paper: Paper, call: Call) -> Value:
    paper.emit(Opaque(paper.place(call.node), what="Stepper"))
    return paper.make("engine", call.node)


LIBRARY = Library(
    functions={
        "fallline.Stepper": _stepper,
        "fallline.clip_grad_norm_": FUNCTIONS["torch.nn.utils.clip_grad_norm_"],
    }
)
