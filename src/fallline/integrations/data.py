"""`fallline.measure_data`: what batches teach, from inside a script, a notebook or a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fallline.instruments.data.measure import data_of_script
from fallline.instruments.frame import Progress
from fallline.instruments.script import Ran, Script
from fallline.verdict.observed import findings_of_observations

if TYPE_CHECKING:
    from torch import nn

    from fallline.instruments.data.report import Taught

__all__ = ["measure_data", "measure_script"]


def measure_data(
    batches: Iterable[Any] | Callable[[], object],
    *,
    tokenizer: Any = None,
    model: nn.Module | None = None,
    most: int = 4,
) -> Taught:
    """What the first `most` batches teach: a DataLoader, a list of batches, one batch, or a function that trains.

    Prints nothing: `print(taught.text())`; `taught.findings` are the mistakes. With a tokenizer, samples are shown as text;
    with the model, packed samples are tested for leaks. Labels in a dictionary are taken as Transformers takes them (the
    model shifts); in a pair `(tokens, targets)`, the targets belong to the tokens at the same place.
    """
    from fallline.instruments.data.teach import data_of_batches  # needs torch
    from fallline.instruments.where import user_line

    if callable(batches) and not hasattr(batches, "__iter__"):
        taught, ran = data_of_script(batches, batches=most, tokenizer=tokenizer)
        if ran.error is not None:
            raise ran.error
    else:
        taught = data_of_batches(batches, tokenizer, model, user_line(), most)
    taught.findings = findings_of_observations(taught.observed)
    return taught


def measure_script(
    script: Script, *, batches: int, progress: Progress | None
) -> tuple[Taught, Ran]:
    """The same of a script, which runs until so many batches have been learned from."""
    taught, ran = data_of_script(script, batches=batches, progress=progress)
    taught.findings = findings_of_observations(taught.observed)
    return taught, ran
