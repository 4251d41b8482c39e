"""FL703: torch.save(model) instead of torch.save(model.state_dict())."""

from __future__ import annotations

import io
import sys
from types import ModuleType

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of

# The same file of a project, as it was when the checkpoint was written and as it is later.
AS_SAVED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)
"""
RENAMED = AS_SAVED.replace("Net", "Network")
EDITED = AS_SAVED.replace("nn.Linear(4, 4)", "nn.Linear(4, 4)\n        self.scale = 0.5").replace(
    "self.layer(x)", "self.scale * self.layer(x)"
)


@experiment(
    "FL703",
    claim="A pickled module no longer loads once its class is renamed, breaks in use once it is edited, and is refused by the "
    "default of torch.load; a state_dict survives all three.",
)
def module_pickled() -> Measured:
    torch.manual_seed(0)
    model = _project(AS_SAVED, "Net")
    module, weights = io.BytesIO(), io.BytesIO()
    torch.save(model, module)
    torch.save(model.state_dict(), weights)

    def from_module(source: str, class_name: str, weights_only: bool | None = None) -> None:
        _project(source, class_name)
        module.seek(0)
        loaded = torch.load(module, weights_only=weights_only)
        loaded(torch.ones(1, 4))

    def from_weights(source: str, class_name: str) -> None:
        fresh = _project(source, class_name)
        weights.seek(0)
        fresh.load_state_dict(torch.load(weights))
        fresh(torch.ones(1, 4))

    try:
        wrong = {
            "unchanged code": error_of(lambda: from_module(AS_SAVED, "Net", weights_only=False)),
            "class renamed": error_of(lambda: from_module(RENAMED, "Network", weights_only=False)),
            "class edited": error_of(lambda: from_module(EDITED, "Net", weights_only=False)),
            "default of torch.load": error_of(lambda: from_module(AS_SAVED, "Net")),
        }
        right = {
            "unchanged code": error_of(lambda: from_weights(AS_SAVED, "Net")),
            "class renamed": error_of(lambda: from_weights(RENAMED, "Network")),
            "class edited": error_of(lambda: from_weights(EDITED, "Net")),
            "default of torch.load": error_of(lambda: from_weights(AS_SAVED, "Net")),
        }
    finally:
        del sys.modules["project"]
    failed = sum(outcome != "none" for outcome in wrong.values())
    return Measured(
        sides={"wrong": wrong, "right": right},
        conclusion=f"the pickled module fails in {failed} of {len(wrong)} cases (renamed: {wrong['class renamed']}, edited: "
        f"{wrong['class edited']}, default load: {wrong['default of torch.load']}), the state_dict in none",
        holds={
            "a pickle works while nothing changes": wrong["unchanged code"] == "none",
            "it does not load after a rename": wrong["class renamed"] == "AttributeError",
            "it breaks in use after an edit": wrong["class edited"] == "AttributeError",
            "the default of torch.load refuses it": wrong["default of torch.load"]
            == "UnpicklingError",
            "a state_dict works in all cases": set(right.values()) == {"none"},
        },
    )


def _project(source: str, class_name: str) -> nn.Module:
    """An instance of the class as the project has it now."""
    project = ModuleType("project")
    project.__dict__["nn"] = nn
    exec(source, project.__dict__)
    sys.modules["project"] = project
    instance = project.__dict__[class_name]()
    assert isinstance(instance, nn.Module)
    return instance
