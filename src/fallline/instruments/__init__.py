"""Measurements on demand: what an expert reaches for before prescribing.

Every instrument is a function here, a verb of `fallline measure`, and leaves model, randomness and results as they are.
The names are imported on first use: most of what is behind them needs torch.

A new instrument is one file (`samples.py` is a short one):

- an `Observer` whose methods note what they hear of the run; what they compute themselves is not part of the run;
- a dataclass with `partial`, `to_json()` and `text()`, the verdict first;
- a function that calls `run_until(target, observer, updates=...)` and returns the dataclass.

Instruments patch nothing that can be heard: `follow.py` subscribes to the taps, so a run can be watched and measured at once.
A call that no tap publishes yet needs a new topic in taps/. `fallline measure` shows an instrument once it has a verb in
cli/measuring/ (options) and cli/work/measuring/ (work).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fallline.instruments.clip.noise import gradient_noise_scale, noise_scale_from_norms
    from fallline.instruments.clip.rates import lr_range_test
    from fallline.instruments.clip.threshold import propose_clip, propose_from_norms
    from fallline.instruments.data.measure import data_of_script
    from fallline.instruments.frame import Measurement, Progress
    from fallline.instruments.function import check_function
    from fallline.instruments.memory import measure_memory
    from fallline.instruments.model import measure_model
    from fallline.instruments.precision import precision_probe
    from fallline.instruments.precision.table import autocast_table
    from fallline.instruments.ranks import (
        measure_ranks,
        no_sync_gain,
        parameters_equal,
        sampler_overlap,
    )
    from fallline.instruments.same import measure_same
    from fallline.instruments.samples import measure_samples
    from fallline.instruments.script import Observer, Script, run_until
    from fallline.instruments.timing import measure_time

_HOME = {
    "Measurement": "fallline.instruments.frame",
    "Progress": "fallline.instruments.frame",
    "autocast_table": "fallline.instruments.precision.table",
    "check_function": "fallline.instruments.function",
    "data_of_script": "fallline.instruments.data.measure",
    "measure_model": "fallline.instruments.model",
    "precision_probe": "fallline.instruments.precision",
    "Observer": "fallline.instruments.script",
    "Script": "fallline.instruments.script",
    "run_until": "fallline.instruments.script",
    "measure_memory": "fallline.instruments.memory",
    "measure_time": "fallline.instruments.timing",
    "propose_clip": "fallline.instruments.clip.threshold",
    "propose_from_norms": "fallline.instruments.clip.threshold",
    "gradient_noise_scale": "fallline.instruments.clip.noise",
    "noise_scale_from_norms": "fallline.instruments.clip.noise",
    "lr_range_test": "fallline.instruments.clip.rates",
    "measure_same": "fallline.instruments.same",
    "measure_samples": "fallline.instruments.samples",
    "measure_ranks": "fallline.instruments.ranks",
    "no_sync_gain": "fallline.instruments.ranks",
    "parameters_equal": "fallline.instruments.ranks",
    "sampler_overlap": "fallline.instruments.ranks",
}

__all__ = [
    "Measurement",
    "Observer",
    "Progress",
    "Script",
    "autocast_table",
    "check_function",
    "data_of_script",
    "gradient_noise_scale",
    "lr_range_test",
    "measure_memory",
    "measure_model",
    "measure_ranks",
    "measure_same",
    "measure_samples",
    "measure_time",
    "no_sync_gain",
    "noise_scale_from_norms",
    "parameters_equal",
    "precision_probe",
    "propose_clip",
    "propose_from_norms",
    "run_until",
    "sampler_overlap",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fallline.instruments' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
