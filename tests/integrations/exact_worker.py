"""One of two ranks that train by token with exact accumulation: `exact_worker.py lightning|accelerate OUT`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import test_exact as single

which, out = sys.argv[1], Path(sys.argv[2])
if which == "lightning":
    from fallline.integrations.lightning import ExactAccumulation

    options = {"devices": 2, "strategy": "ddp"}
    exact = single.by_lightning(out.parent, ExactAccumulation(mean_over=single.tokens), **options)
    plain = single.by_lightning(out.parent, **options)
else:
    exact = single.by_accelerate(exact=True, by_token=True)
    plain = single.by_accelerate(exact=False)
if torch.distributed.get_rank() == 0:
    torch.save({"exact": exact, "plain": plain}, out)
