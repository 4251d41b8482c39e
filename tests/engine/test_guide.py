"""Every Python block of docs/engine.md runs, in order, as a reader would paste it."""

from __future__ import annotations

import re
from pathlib import Path

import torch

torch.set_num_threads(1)
GUIDE = Path(__file__).parents[2] / "docs" / "engine.md"


def test_the_guide_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 8
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), namespace)
    assert "0.weight" in capsys.readouterr().out
