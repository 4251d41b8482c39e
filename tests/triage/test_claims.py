"""Claims are data: every one rests on something that was measured or is executed here, and every snippet runs and does what it promises."""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import textwrap
import warnings
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from tests.triage import behaviours
from tests.triage.test_errors import ALSO, PROVOKED, RECORDED, homes
from tests.triage.test_playbook_code import world

from fallline.cli.main import main
from fallline.rules import rule_by_code
from fallline.specialists import SPECIALISTS
from fallline.triage.claim import Action, Claim, claims, points
from fallline.triage.playbook import facts

CLAIMS = (*claims(), *points())
BEHAVIOURS = {
    name: function
    for home in homes("behaviours")
    for name, function in vars(home).items()
    if isinstance(function, FunctionType)
    and function.__module__ == home.__name__
    and not name.startswith("_")
}
LONG = {
    "deepspeed_has_its_own_norm",
    "the_trainer_logs_nan_as_zero",
}  # need what only `make test-long` installs
CODE = [
    # what copies between a device and the host runs where there is one (`make test-gpu`); Lightning's in test_framework_snippets.py
    pytest.param(
        claim,
        action,
        id=f"{claim.id}-{n}",
        marks=pytest.mark.gpu if "gpu" in action.proof else (),
    )
    for claim in CLAIMS
    for n, action in enumerate(claim.actions, 1)
    if action.code and not {"bash", "lightning"} & action.proof.keys()
]
SHELL = sorted({a.code for c in CLAIMS for a in c.actions if "bash" in a.proof})


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in BEHAVIOURS]
)
def test_torch_does_what_claims_say(name: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    BEHAVIOURS[name]()


def test_names_are_unique_and_specialists_exist() -> None:
    assert len({c.id for c in CLAIMS}) == len(CLAIMS) >= 200
    assert {c.specialist for c in CLAIMS} == {s.name for s in SPECIALISTS}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_every_claim_rests_on_something(claim: Claim) -> None:
    given = {ALSO.get(name, name.replace("_", "-")) for name in PROVOKED} | RECORDED.keys()
    assert claim.backs and claim.says and claim.specialist
    assert claim.asks or claim.messages or claim.sees or (claim.facts and claim.explains)
    assert claim.verdict in {None, "yes", "no", "depends"}
    for back in claim.backs:
        if back in {"error", "ranks"}:
            assert claim.id in given
        elif back.startswith("torch:"):
            assert back.removeprefix("torch:") in BEHAVIOURS, back
        else:
            assert back in facts() or rule_by_code(back) is not None, back


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_every_condition_asks_for_words(claim: Claim) -> None:
    asked = (claim.when, claim.never, claim.asked, *(a.unless for a in claim.actions))
    for condition in asked:
        assert condition is None or all(condition.groups)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_an_answer_is_short(claim: Claim) -> None:
    assert len(re.split(r"(?<=[.!?])\s+(?=[A-Z`(])", claim.says)) <= 4
    assert len(claim.says) <= 620 and len(claim.actions) <= 3
    assert all(a.code.count("\n") < 15 for a in claim.actions)


def test_every_behaviour_is_used() -> None:
    from fallline.triage.refuted import refuted

    used = {b.removeprefix("torch:") for c in CLAIMS for b in c.backs}
    used |= {r.fact.removeprefix("torch:") for r in refuted()}
    assert BEHAVIOURS.keys() <= used


@pytest.mark.parametrize(("claim", "action"), CODE)
def test_a_snippet_runs_and_keeps_its_promise(
    claim: Claim, action: Action, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ast.parse(textwrap.dedent(action.code))
    if "gpu" in action.proof and not torch.cuda.is_available():
        pytest.skip("copies from a CUDA device")
    if "ranks" in action.proof:
        monkeypatch.setenv("LOCAL_RANK", "0")  # only here: accelerate reads it too
        run_elsewhere(action)
        return
    monkeypatch.chdir(tmp_path)
    assert "check" in action.proof, "a snippet says what must hold after it"
    names = {**world(), "total_norm": None, "group_norm": None}
    model = names["model"]
    if claim.id != "freeze-ddp":  # what is frozen has no gradient
        names["loss"].backward(retain_graph=True)
    names["total_norm"] = lambda: norm_of(model)
    names["group_norm"] = norm_of
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no CUDA here: autocast and the scaler say so
        exec(action.proof.get("world", ""), names)
        try:
            exec(compile(action.code, claim.id, "exec"), names)
            assert eval(action.proof["check"], names)
        finally:
            exec(action.proof.get("after", ""), names)
            torch._dynamo.reset()


def norm_of(module: torch.nn.Module) -> float:
    """The gradient norm as it is now; 0 when there is none."""
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0


def run_elsewhere(action: Action) -> None:
    """In a process group of one, with the names that a distributed script imports."""
    import os

    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    def body() -> None:
        names: dict[str, Any] = {**world(), "dist": dist, "os": os, "Net": type(world()["model"])}
        names |= {"DataLoader": DataLoader, "DistributedSampler": DistributedSampler}
        names |= {
            "StateDictOptions": StateDictOptions,
            "get_model_state_dict": get_model_state_dict,
        }
        names |= {"MixedPrecisionPolicy": MixedPrecisionPolicy}
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        names["fully_shard"] = lambda module, **given: fully_shard(module, mesh=mesh, **given)
        names["DistributedDataParallel"] = lambda module, **_: DistributedDataParallel(
            module.to("cpu")
        )
        code = action.code.replace("dist.init_process_group()  ", "pass  ").replace(
            ".to(local)", ""
        )
        if "full_tensor" in code or "get_model_state_dict" in code:
            names["fully_shard"](names["model"])
            names["loss"] = names["model"](names["inputs"]).sum()
            names["loss"].backward()
        exec(action.proof.get("world", ""), names)
        with contextlib.chdir(os.environ.get("TMPDIR", "/tmp")):
            exec(code, names)
        assert names["model"] is not None

    behaviours._alone(body)


@pytest.mark.parametrize("code", SHELL)
def test_a_command_exists(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in code.splitlines():
        words = shlex.split(line.partition(" #")[0])
        if words[:1] == ["fallline"]:
            verb = words[1:3] if words[1] == "measure" else words[1:2]
            with contextlib.suppress(SystemExit):
                main([*verb, "--help"])
            assert "usage: fallline" in capsys.readouterr().out
