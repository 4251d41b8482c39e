"""FL019: adapters are attached and none of them learns."""

from __future__ import annotations

from typing import Any

from fallline.finding import Severity
from fallline.rules.tuning._measured import Measured


class AdapterTrainsNothing(Measured):
    code = "FL019"
    name = "adapter-trains-nothing"
    severity = Severity.ERROR
    what = """\
Finds adapters (LoRA and its kin) of which no parameter gets a gradient or is in an optimizer."""
    why = """\
The run trains nothing, or only what was not meant to be trained. The loss moves a little with the data, so it can take hours to notice, and the saved adapter is the untrained one."""
    instead = """\
Attach the adapter first, then build the optimizer from the adapted model; load adapters to train with `is_trainable=True`.

```python
model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
```"""

    def says(self, entry: dict[str, Any]) -> str:
        many = f"{entry['adapters']} adapter weights are attached"
        return {
            "frozen": f"{many}, but all of them are frozen. Load the adapter with `is_trainable=True`, or set `requires_grad`",
            "not optimized": f"{many}, but no optimizer holds any of them: it was built before the adapters. Build it from the adapted model",
            "merged": f"{many}, but they are merged into the base weights, so no gradient reaches them. Call `unmerge_adapter()` before training",
            "checkpointing": f"{many}, but gradient checkpointing cuts them off: the inputs of the frozen base need no gradient. "
            "Call `model.enable_input_require_grads()`, or checkpoint with `use_reentrant=False`",
        }.get(
            entry["why"],
            f"{many}, but the loss does not reach any of them: {entry.get('example')} got no gradient. Call the adapted model, not the base model",
        )
