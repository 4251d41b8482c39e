"""FL209: the same guard in float16, bfloat16 and float32, at a value of zero."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@experiment(
    "FL209",
    claim="An epsilon up to 3e-8 is zero in float16, so log(0 + 1e-8) is -inf and 1 / (0 + 1e-8) is inf; bfloat16 and float32 keep it.",
    taught="An epsilon of 1e-8 makes log and division safe.",
)
def epsilon_underflows() -> Measured:
    logs = {name: float(torch.log(torch.zeros(1, dtype=d) + 1e-8)) for name, d in DTYPES.items()}
    inverses = {name: float(1 / (torch.zeros(1, dtype=d) + 1e-8)) for name, d in DTYPES.items()}
    held = {name: float(torch.tensor(1e-8, dtype=d)) for name, d in DTYPES.items()}
    zero, not_zero = (float(torch.tensor(e).half()) for e in (2.9e-8, 3.1e-8))
    safe = float(torch.log(torch.zeros(1, dtype=torch.float16) + 1e-6))
    return Measured(
        sides={
            "wrong": {
                "what float16 makes of epsilon": held["float16"],
                "epsilon": 1e-8,
                "log(0 + epsilon) in float16": f"{logs['float16']:g}",
                "1 / (0 + epsilon) in float16": f"{inverses['float16']:g}",
            },
            "right": {
                "what float16 makes of epsilon": float(torch.tensor(1e-6).half()),
                "epsilon": 1e-6,
                "log(0 + epsilon) in float16": f"{safe:.1f}",
                "log(0 + 1e-8) in bfloat16": logs["bfloat16"],
                "log(0 + 1e-8) in float32": logs["float32"],
            },
        },
        conclusion=f"in float16 1e-8 is {held['float16']:g}, so log(0 + 1e-8) is {logs['float16']:g} and 1 / (0 + 1e-8) is {inverses['float16']:g}; in float32 the log is {logs['float32']:.1f}, "
        f"with 1e-6 in float16 {safe:.1f}",
        holds={
            "1e-8 is zero in float16": held["float16"] == 0,
            "up to 3e-8 everything is": zero == 0 and not_zero > 0,
            "the guarded log is -inf": logs["float16"] == float("-inf"),
            "the guarded inverse is inf": inverses["float16"] == float("inf"),
            "bfloat16 and float32 keep it": min(held["bfloat16"], held["float32"]) > 0,
            "float16 can hold 1e-6": safe > -15,
        },
    )
