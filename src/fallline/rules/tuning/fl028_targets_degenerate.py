"""FL028: targets or inputs that cannot teach."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed


class TargetsDegenerate(Observed):
    code = "FL028"
    name = "targets-degenerate"
    severity = Severity.WARNING
    what = """\
Finds targets that are the same for every sample of the first batches, and inputs that are all zero or all the same. Notes images on the scale of bytes and images whose channels come last."""
    why = """\
A constant target is learned by the bias alone: the loss falls to zero and the model ignores its input. A data set that is sorted by class does the same for a while, batch after batch."""
    instead = """\
Look at a batch, then shuffle, or correct the column that is read.

- `DataLoader(dataset, shuffle=True)`
- `images = images.float() / 255`"""

    def says(self, entry: dict[str, Any]) -> str:
        match entry["what"]:
            case "targets":
                return (
                    f"All {entry['samples']:,} targets of the first batches are {entry['value']:g}, so the bias alone can learn them. "
                    "Shuffle the data, or check which column the targets come from"
                )
            case "inputs":
                how = "all zero" if entry["why"] == "zero" else "all the same"
                return f"The {entry['samples']:,} samples of the first batches are {how}: there is nothing to learn from them. Check how they are loaded"
            case "scale":
                return f"The images go from {entry['low']:g} to {entry['high']:g}, like bytes. Divide them by 255 and normalise them, or the first layer saturates"
        shape = "×".join(map(str, entry["shape"]))
        return f"The images are {shape}, with the channels last, but convolutions take them first. Use `images.permute(0, 3, 1, 2)`"

    def weighs(self, entry: dict[str, Any]) -> Severity | None:
        return Severity.INFO if entry["what"] in ("scale", "channels") else None
