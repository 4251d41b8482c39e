"""FL026: training samples are in the evaluation set too."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class EvaluationLeaks(Measured):
    code = "FL026"
    name = "evaluation-leaks"
    severity = Severity.WARNING
    what = """\
Finds samples of the training set that occur in the evaluation set, by their content."""
    why = """\
The evaluation rewards memorising: its loss falls with the training loss, overfitting does not show, and the wrong checkpoint is chosen as the best."""
    instead = """\
Split once, before anything is duplicated or augmented, and remove duplicates over both parts.

```python
train, evaluation = torch.utils.data.random_split(dataset, [0.9, 0.1])
```"""

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"{entry['common']:,} of {entry['evaluated']:,} evaluation samples are in the training set too, so the evaluation rewards memorising. "
            "Split once, and remove duplicates over both parts"
        )
