"""DeepSpeed's engine on two ranks, ZeRO 0 to 3: the losses of a bare run, updates and norms as the engine has them, faults by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gloo import run_workers

WORKER = Path(__file__).with_name("deepspeed_worker.py")
UPDATES, WINDOW = 12, 2


def check_precision(name: str, seen: dict[str, Any]) -> None:
    """One update for each of the engine's, its norm and learning rate; what float16 leaves out is how it finds its scale."""
    assert str(seen["losses"]) == str(seen["bare"]), name
    assert seen["found"] == [] and seen["updates"] == UPDATES, (name, seen["found"])
    recorded, of_engine = seen["rates"]
    assert recorded == of_engine, (name, recorded, of_engine)
    assert "fp32" in name or recorded[0] > recorded[-1], name  # the engine's scheduler
    applied = [i for i in range(UPDATES) if i not in seen["skipped"]]
    norms = [seen["norms"][i] for i in applied]
    assert norms == pytest.approx([seen["engine"][i] for i in applied]), name
    if not name.startswith("fp16"):
        assert applied == list(range(UPDATES)) and seen["scales"] == [None] * UPDATES, name
        return
    assert 0 < len(applied) < UPDATES, name
    scales = seen["scales"]
    assert [scales[i + 1] / scales[i] for i in seen["skipped"]] == [0.5] * len(seen["skipped"])


@pytest.mark.long
def test_the_engine_is_watched(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    said = run_workers(str(WORKER), str(tmp_path), world=2)
    assert "the watcher failed" not in said, said
    result = json.loads((tmp_path / "result.json").read_text())
    for stage in "0123":
        seen = result[stage]
        assert seen["losses"] == seen["bare"], stage
        assert seen["found"] == [] and seen["updates"] == UPDATES, stage
        pairs = zip(seen["losses"][::WINDOW], seen["losses"][1::WINDOW], strict=True)
        assert seen["recorded"] == pytest.approx([(a + b) / 2 for a, b in pairs]), stage
        assert all(n is not None for n in seen["norms"]), stage
        if seen["engine"]:  # stage 0 keeps none
            assert seen["norms"] == pytest.approx(seen["engine"]), stage
    for name in ("bf16 0", "bf16 2 offload", "fp16 1", "fp16 2 offload", "fp32 2 offload"):
        check_precision(name, result[name])
    assert result["0"]["norms"] == pytest.approx(result["2"]["norms"], rel=1e-4)
    lines = WORKER.read_text().splitlines()
    for fault, code in (("divided", "FL129"), ("clipped", "FL103"), ("never stepped", "FL118")):
        at = next(n for n, line in enumerate(lines, 1) if code in line.partition("#")[2])
        assert [code, at] in result[fault]["found"], (fault, result[fault]["found"])
