"""FL022: the policy's loss does not reach the policy."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules._observed import Observed


class PolicyWithoutGradient(Observed):
    code = "FL022"
    name = "policy-without-gradient"
    severity = Severity.ERROR
    yields_to = ("FL019",)
    what = """\
Finds a policy loss that does not depend on the policy's parameters: its log-probabilities were detached, or computed without gradients."""
    why = """\
The policy never changes. The value loss still falls and rewards vary by chance, so the run looks alive."""
    instead = """\
Compute the new log-probabilities with a graph, and detach only the old ones.

```python
new = policy(ids).logits.log_softmax(-1).gather(-1, actions)
ratio = (new - old.detach()).exp()
```"""

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"The loss does not depend on the policy ({entry['model']}): none of its parameters got a gradient. "
            "Compute its log-probabilities with gradients on, and do not detach them"
        )
