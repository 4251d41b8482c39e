"""What looks like a mistake and is meant, or is in code that nobody meets: a note, or nothing; and beside it the mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.rules import rule_by_code
from fallline.verdict.project import read_paths


def told(folder: Path, code: str, **files: str) -> list[str]:
    """The severities of what one rule says of files that are read together."""
    rule = rule_by_code(code)
    assert rule is not None
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    paths = [str(folder / f"{name}.py") for name in files]
    readings = read_paths(paths, rules=[rule], roots=[str(folder)])
    return sorted(str(f.severity) for r in readings for f in r.findings)


SECOND_STAGE = """\
import torch
optimizer = torch.optim.AdamW(model.parameters())
if config["resume"]:
    state = torch.load(config["path"])
    model.load_state_dict(state["model"])
    print("loss at the start", state["loss"])
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for epoch in tqdm(range(1, 9)):
    train(model).backward()
    optimizer.step()
    scheduler.step()
    torch.save({"model": model.state_dict(), "loss": loss, "epoch": epoch}, "best.pt")
"""
COUNTS_ON = SECOND_STAGE.replace("range(1, 9)", "range(config['start'], 9)")


@pytest.mark.parametrize("code", ["FL701", "FL702"])
def test_weights_to_begin_with_are_no_resume(code: str, tmp_path: Path) -> None:
    assert set(told(tmp_path, code, train=SECOND_STAGE)) <= {"info"}
    assert told(tmp_path, code, train=COUNTS_ON) == ["warning"]


LAYERS = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.tables = {"a": nn.Linear(2, 2)}

    def forward(self, x):
        return self.body(x)
"""


def test_layers_that_nothing_reads(tmp_path: Path) -> None:
    assert told(tmp_path, "FL801", net=LAYERS) == ["info"]
    other = "from net import Net\nnet = Net()\nprint(net.tables['a'](x))\n"
    assert told(tmp_path, "FL801", net=LAYERS, other=other) == ["warning"]


STORED = """\
import torch
import torch.nn.functional as F


def train(model, optimizer, x, bank, near):
    p = torch.softmax(model(x), dim=1)
    several = p.unsqueeze(1).expand(-1, 4, -1)
    loss = (F.kl_div(several, bank[near], reduction="none").sum(-1) * 0.1).sum(1).mean()
    loss.backward()
    optimizer.step()
"""


def test_a_prediction_against_several_stored_ones(tmp_path: Path) -> None:
    assert told(tmp_path, "FL612", train=STORED) == ["info"]
    one = STORED.replace("kl_div(several", "kl_div(p")
    assert told(tmp_path, "FL612", train=one) == ["error"]


ATTENTION = """\
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, x, mask=None):
        scores = x @ x.transpose(1, 2)
        if mask is not None:
            mask = mask[:, None, :] * mask[:, :, None]
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(dim=-1) @ x


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention() for _ in range(3)])

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = Blocks()

    def forward(self, x, padding):
        return self.blocks(x)


print(Net()(torch.randn(2, 3, 4), None))
"""


@pytest.mark.parametrize(
    "handed",
    ["blocks(x, padding)", "blocks(x, mask=padding)", "blocks(*parts)", "layers[0](x, padding)"],
)
def test_an_argument_that_nobody_hands_over(handed: str, tmp_path: Path) -> None:
    assert told(tmp_path, "FL611", net=ATTENTION) == ["info"]
    assert told(tmp_path, "FL611", net=ATTENTION.replace("blocks(x)", handed)) == ["warning"]


TUNED = """\
import torch


def tune(model, optimizer, x, cfg):
    for _ in range(cfg.T.STEPS):
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def adapt(loader, cfg):
    model = make(cfg)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for x in loader:
        if cfg.T.STEPS > 0:
            with torch.no_grad():
                model.train()
        tune(model, optimizer, x, cfg)
        with torch.no_grad():
            model.eval()
            print(model(x))
"""


def test_a_loop_over_a_count_that_is_none(tmp_path: Path) -> None:
    assert told(tmp_path, "FL804", adapt=TUNED) == []
    other = TUNED.replace("if cfg.T.STEPS > 0", "if cfg.T.ANEW > 0")
    assert told(tmp_path, "FL804", adapt=other) == ["warning"]


TWO_CONTEXTS = """\
import torch


def predict(model, loader):
    torch.set_grad_enabled(False)
    for x in loader:
        with torch.no_grad() and torch.autocast("cuda"):
            print(model(x))
"""


def test_a_context_that_is_not_entered_where_recording_is_off(tmp_path: Path) -> None:
    assert told(tmp_path, "FL402", predict=TWO_CONTEXTS) == []
    again = TWO_CONTEXTS.replace("    for x", "    torch.set_grad_enabled(True)\n    for x")
    assert told(tmp_path, "FL402", predict=again) == ["warning"]


ENSEMBLE = """\
from torch import nn


class Ensemble(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.models = [nn.Linear(2, 2) for _ in range(n)]
        [model.eval() for model in self.models]

    def forward(self, x):
        return [model(x) for model in self.models]
"""


def test_models_that_are_only_asked_together(tmp_path: Path) -> None:
    assert told(tmp_path, "FL801", net=ENSEMBLE) == ["info"]
    trained = ENSEMBLE.replace("model.eval()", "model.train()")
    assert told(tmp_path, "FL801", net=trained) == ["error"]


POLICY = """\
import torch


class Policy(torch.nn.Module):
    def __init__(self, name):
        self.name = name
"""
MADE = """\
from layers import MLP
from policy import Policy


class Gaussian(Policy, MLP):
    def __init__(self, name):
        Policy.__init__(self, name)
        MLP.__init__(self)


print(Gaussian("a"))
"""


def test_a_base_beside_one_that_initialises_the_module(tmp_path: Path) -> None:
    assert told(tmp_path, "FL802", policy=POLICY, made=MADE) == []
    # passed on by the package
    passed = MADE.replace("from policy", "from every")
    every = "from policy import Policy\n"
    assert told(tmp_path, "FL802", policy=POLICY, every=every, made=passed) == []
    alone = MADE.replace("(Policy, MLP)", "(Policy)")
    assert told(tmp_path, "FL802", policy=POLICY, made=alone) == ["error"]


CLIPPED = """\
import torch


def train(model, loader, cfg):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in enumerate(loader):
        (model(x).mean() / cfg.grad_accumulation).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if (step + 1) % cfg.grad_accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_number_that_a_configuration_only_has_in_a_comment(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# grad_accumulation: 9\ngrad_accumulation: 1\n")
    assert told(tmp_path, "FL103", train=CLIPPED) == ["info"]
    (tmp_path / "a.yaml").write_text("grad_accumulation: 9\n# grad_accumulation: 1\n")
    assert told(tmp_path, "FL103", train=CLIPPED) == ["error"]


ADVERSARY = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(G, D, loader):
    G, D = DDP(G), DDP(D)
    optimizer = torch.optim.SGD(G.parameters(), lr=0.1)
    D.requires_grad_(False)
    for x in loader:
        for i in range(4):
            G.require_backward_grad_sync = i == 3
            fake = G(x[i])
            loss = D(fake).mean() / 4
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_ddp_averages_nothing_for_a_frozen_model(tmp_path: Path) -> None:
    assert told(tmp_path, "FL301", train=ADVERSARY) == []
    learns = ADVERSARY.replace("    D.requires_grad_(False)\n", "")
    assert told(tmp_path, "FL301", train=learns) == ["warning"]


SYNCED = """\
import contextlib
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


@contextlib.contextmanager
def synced(module, sync):
    if sync or not isinstance(module, DDP):
        yield
    else:
        with module.no_sync():
            yield


def train(G, loader, k):
    G = DDP(G)
    optimizer = torch.optim.SGD(G.parameters(), lr=0.1)
    for x in loader:
        for i in range(k):
            with synced(G, sync=(i == k - 1)):
                (G(x[i]).mean() / k).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_context_manager_of_the_project_that_asks_what_it_is_given(tmp_path: Path) -> None:
    assert told(tmp_path, "FL301", train=SYNCED) == []
    always = SYNCED.replace("sync=(i == k - 1)", "sync=True")
    assert told(tmp_path, "FL301", train=always) == ["warning"]


HANDED = """\
from torch import nn


class Compose(nn.Module):
    def __init__(self, parts: list[nn.Module]):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x
"""


def test_layers_that_only_an_annotation_speaks_of_may_have_no_weights(tmp_path: Path) -> None:
    assert told(tmp_path, "FL801", net=HANDED) == ["warning"]
    made = HANDED.replace("self.parts = parts", "self.parts = [nn.Linear(2, 2)]")
    assert told(tmp_path, "FL801", net=made) == ["error"]


TWO_WAYS = """\
import torch
from torch import nn


class Agent:
    def __init__(self):
        self.net = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def learn(self, x):
        self.optimizer.zero_grad()
        self.net(x).mean().backward()
        self.optimizer.step()

    def learn_clipped(self, x):
        self.optimizer.zero_grad()
        self.net(x).mean().backward()
        self.optimizer.step()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
"""


@pytest.mark.parametrize(("method", "severity"), [("learn", "info"), ("learn_clipped", "error")])
def test_a_method_that_nothing_calls(method: str, severity: str, tmp_path: Path) -> None:
    main = (
        f"import torch\nfrom agent import Agent\nagent = Agent()\nagent.{method}(torch.ones(4))\n"
    )
    assert told(tmp_path, "FL101", agent=TWO_WAYS, main=main) == [severity]
    # alone it is for whoever takes it
    alone = tmp_path / "alone"
    alone.mkdir()
    assert told(alone, "FL101", agent=TWO_WAYS) == ["error"]


HELPERS = """\
import torch


def resume_optimizer(optimizer, args):
    checkpoint = torch.load(args.load)
    optimizer.load_state_dict(checkpoint["optimizer"])


def {name}(model, args):
    checkpoint = torch.load(args.load)
    model.load_state_dict(checkpoint["model"])
    args.start_epoch = checkpoint["epoch"]
"""
SAVES = """\
import torch
from state import resume_optimizer


def train(model, loader, optimizer, scheduler, args):
    for epoch in range(args.start_epoch, 9):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step(epoch)
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.load)
"""


@pytest.mark.parametrize(("name", "severities"), [("resume_model", []), ("show", ["info"])])
def test_a_file_that_is_read_in_two_parts(name: str, severities: list[str], tmp_path: Path) -> None:
    told_of = told(tmp_path, "FL702", state=HELPERS.format(name=name), train=SAVES)
    assert told_of == severities


TRIED = """\
import torch
from torch import nn


class Net(nn.Linear):
    pass


if __name__ == "__main__":
    net = Net(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in torch.randn(9, 4):
        net(x).mean().backward()
        optimizer.step(){keeps}
"""


@pytest.mark.parametrize(
    ("keeps", "severity"), [("", "info"), ("\n    torch.save(net.state_dict(), 'net.pt')", "error")]
)
def test_a_file_that_others_import_tries_itself(keeps: str, severity: str, tmp_path: Path) -> None:
    other = "from net import Net\nprint(Net(4, 1))\n"
    assert told(tmp_path, "FL106", net=TRIED.format(keeps=keeps), other=other) == [severity]
