"""The code of the fixes runs: each in a small world that has the names a training script has."""

from __future__ import annotations

import contextlib
import re
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fallline
from fallline.triage.playbook import Fixing, playbooks

# what needs more than one process or one torch
ELSEWHERE = {
    "DDP under torchrun": "needs torchrun",
    "Use the framework's own option": "needs lightning",
    "Set the framework's option and remove the manual clip": "needs lightning",
    "Clip with the Accelerator, on the last micro-batch": "needs accelerate",
    "Clip with Fabric": "needs lightning",
    "Set max_grad_norm": "needs transformers",
    "Shard with fully_shard": "needs torchrun",
    "Resize the embeddings after adding tokens": "needs transformers",
    "Share by file, not by descriptor": "changes how the whole process shares",
}
FIXES = [
    pytest.param(fix, id=f"{case.id}-{number}")
    for book in playbooks()
    for case in book.cases
    for number, fix in enumerate(case.fix)
    if fix.code and fix.title not in ELSEWHERE
]


MEASURES = sorted(
    {
        step.run
        for book in playbooks()
        for case in book.cases
        for step in (*case.measure, *case.verify)
        if not re.match(r"[A-Z_]+=|(fallline|torchrun|python|df) ", step.run)
    }
)
NEED_A_GPU = {"print(torch.cuda.memory_summary())"}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grads[0]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 3)
        self.norm = torch.nn.LayerNorm(4)
        self.block = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.backbone(x))
        return out

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Words:
    """As much of a tokenizer as the fixes call."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + [ord(c) % 7 for c in text]}

    def __len__(self) -> int:
        return 7


def _texts() -> dict[str, Any]:
    """Tokens, and what a policy was rewarded for."""
    ids = torch.randint(7, (2, 5))
    return {
        "encoded": {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        "ids": ids,
        "position_ids": torch.arange(5).expand(2, 5),
        "tokenizer": Words(),
        "text": "a text",
        "samples": [{"labels": [-100, -100]}, {"labels": [-100, 3]}],
        "log_prob": torch.randn(4, requires_grad=True),
        "advantage": torch.randn(4, requires_grad=True),
    }


def world() -> dict[str, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(8, 4), torch.randint(0, 3, (8,))
    data = torch.utils.data.TensorDataset(inputs, targets)
    logits = model(inputs)
    return {
        **{"torch": torch, "fallline": fallline, "model": model, "optimizer": optimizer},
        **{"inputs": inputs, "targets": targets, "logits": logits, "outputs": logits, "x": inputs},
        **{"loss_fn": torch.nn.functional.cross_entropy, "self": model, "block": model.block},
        "loss": torch.nn.functional.cross_entropy(logits, targets),
        "loader": torch.utils.data.DataLoader(data, batch_size=2),
        "dataset": data,
        "sampler": torch.utils.data.SequentialSampler(data),
        "scheduler": torch.optim.lr_scheduler.LinearLR(optimizer),
        "scaler": torch.amp.GradScaler("cpu", enabled=False),
        "custom_loss": lambda out, want: out.sum() - want.sum(),
        "similarity": inputs @ inputs.T,
        "temperature": 0.07,
        "wanted": torch.randn(8, 3),
        "scores": torch.randn(8),
        "labels": torch.ones(8, dtype=torch.long),
        "squared": torch.zeros(3),
        "per_token": torch.ones(4),
        "mask": torch.zeros(4),
        "hidden": logits,
        "losses": [],
        "norms": [1.0, 2.0],
        "layer": model.head,
        **{"k": 2, "accumulation_steps": 2, "tokens_in_window": 6, "pad": -100, "epochs": 1},
        **{"step": 0, "i": 1, "total": 0.0, "vocabulary": 50257, "world_size": 2, "epoch": 0},
        **{"classes": 3, "predictions": torch.randn(8, 1), "values": torch.randn(8)},
        "state": {f"module.{key}": value for key, value in model.state_dict().items()},
        **_texts(),
        **{"loss_sum": logits.sum(), "samples_on_all_ranks": 16, "grad_weight": None},
    }


@pytest.mark.parametrize("fix", FIXES)
def test_the_code_runs(fix: Fixing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    body = fix.code
    if "return " in body and "def " not in body:
        body = "def f():\n" + textwrap.indent(body, "    ") + "\nf()"
    seeded = torch.are_deterministic_algorithms_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no CUDA here: autocast and the scaler say so
        try:
            names = world()
            torch.save(names["model"].state_dict(), "model.pt")
            exec(compile(body, fix.title, "exec"), names)
            if fix.title == "Load everything but the head":
                assert names["fits"].keys() == names["model"].state_dict().keys()
            if fix.title == "Save the model, not its wrapper":
                assert not any(k.startswith(("module.", "_orig")) for k in torch.load("model.pt"))
        finally:
            torch.use_deterministic_algorithms(seeded)


@pytest.mark.parametrize("run", [run for run in MEASURES if run not in NEED_A_GPU])
def test_a_measurement_runs_as_printed(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A measurement in Python says something when it is pasted: it prints, sets what it names, or ends without an error."""
    monkeypatch.chdir(tmp_path)
    names = world()
    names |= {"MyFunction": Square, "train_step": names["model"], "batch": names["inputs"]}
    names["train"] = lambda *_: None
    torch.save(names["model"].state_dict(), "model.pt")
    if run == "print(model.load_state_dict(state))":
        names["state"] = names["model"].state_dict()
    if (
        run != "fallline.verify_resume(train)"
    ):  # what it needs of a training function, its own tests say
        exec(compile(run, "<measure>", "exec"), names)
    if run.startswith("print("):
        assert capsys.readouterr().out.strip()
