"""FL023: an advantage, return or reward that is not a constant."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class AdvantageWithGradient(Measured):
    code = "FL023"
    name = "advantage-with-gradient"
    severity = Severity.WARNING
    what = """\
Finds an advantage, return or reward with a graph that enters the policy's loss."""
    why = """\
The policy's loss then trains the critic too: it makes advantages look better instead of estimating them, and the two learn against each other."""
    instead = """\
Detach it where it enters the policy's loss.

```python
policy_loss = -(log_prob * advantage.detach()).mean()
value_loss = advantage.pow(2).mean()
```"""

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"`{entry['variable']}` has a graph and is part of `{entry['loss']}`, so the policy's loss changes the critic too. "
            f"Use `{entry['variable']}.detach()` there"
        )
