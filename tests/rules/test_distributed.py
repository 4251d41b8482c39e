"""The distributed rules over traces written by hand, and over files that belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.events import Loader, Object, Sampler, Strength
from fallline.location import Location
from fallline.rules import rule_by_code
from fallline.verdict import judge
from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text
from traces import codes, trace

SYNC = "F(wrapper=ddp, !no_sync) B(wrapper=ddp, sync)"
LOCAL = "F(wrapper=ddp, no_sync) B(wrapper=ddp, !sync)"


def found(code: str, text: str, optimizers=None, objects=(), **how) -> set[str]:
    rule = rule_by_code(code)
    assert rule is not None
    return codes(rule, trace(text, optimizers, objects, **how))


@pytest.mark.parametrize(
    ("code", "text", "reported"),
    [
        ("FL301", f"Z [{SYNC}]*4 S " * 2, {"B"}),
        ("FL302", "Z F(wrapper=ddp) B(wrapper=ddp, no_sync, sync) S", {"B"}),
        ("FL306", "replace:opt(what=head) Z F B S", {"replace:opt"}),
        ("FL306", "Z F B S replace:opt(what=moved) Z F B S", {"replace:opt"}),
        ("FL308", "Z F B C(local_shards) S", {"C"}),
        ("FL309", "Z F(bypass, wrapper=ddp) B S", {"F"}),
        ("FL310", f"Z [{LOCAL}]*2 S", {"S"}),
        ("FL310", f"Z {SYNC} {LOCAL} {LOCAL} S2", {"S2"}),
        ("FL310", "Z F B(wrapper=fsdp2, !sync) S", {"S"}),
    ],
)
def test_reported(code: str, text: str, reported: set[str]) -> None:
    assert found(code, text) == reported


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("FL301", f"Z [{LOCAL}]*3 {SYNC} S " * 2),
        ("FL301", f"Z {SYNC} S " * 3),
        ("FL301", "Z [F B]*4 S"),
        ("FL301", "Z [F B(wrapper=ddp)]*4 S"),  # not known whether it synchronises
        ("FL301", "Z [F B(wrapper=fsdp2, sync)]*4 S"),
        ("FL301", "Z B1(wrapper=ddp, sync) B2(wrapper=ddp, sync) S"),  # two losses
        ("FL301", f"Z {SYNC} Z2 {SYNC} S"),  # what was sent first was thrown away: FL105
        ("FL302", "Z F(wrapper=ddp) B(wrapper=ddp, no_sync, !sync) S"),
        (
            "FL302",
            "Z F(wrapper=ddp, no_sync) B(wrapper=ddp, no_sync, sync) S",
        ),  # the forward pass says otherwise
        ("FL302", "Z F B(wrapper=fsdp1, no_sync, sync) S"),
        (
            "FL306",
            "Z F B S replace:opt(what=recreated)",
        ),  # loaded for evaluation: never stepped again
        ("FL306", "replace:old(what=recreated) Z:new F B S:new"),
        ("FL308", "Z F B C S"),
        ("FL309", "Z F(wrapper=ddp) B S F2(bypass, !grad)"),
        ("FL309", "Z F(wrapper=ddp) F2(bypass, !training) B S"),
        ("FL309", "Z F(wrapper=ddp) F2(bypass) B S"),  # DDP has prepared this backward
        ("FL309", "Z F(bypass) B W(op=div) S"),  # averaged by hand
        ("FL309", "Z F(bypass, !used) F2 B S"),
        ("FL310", f"Z {LOCAL} {SYNC} S"),
        ("FL310", f"Z {LOCAL} W(op=other) S"),
        ("FL310", "Z F(bypass) B(wrapper=ddp, !sync) S"),  # FL309
        ("FL310", "Z F B(wrapper=fsdp2, !sync) F B(wrapper=fsdp2, sync) S"),
        ("FL310", f"Z {SYNC} B2 S"),
    ],
)
def test_silent(code: str, text: str) -> None:
    assert found(code, text) == set()


def test_on_paper_a_long_window_may_be_cut_short() -> None:
    text = f"Z {LOCAL} {SYNC} {LOCAL} S"
    assert found("FL310", text) == set()
    assert found("FL310", text, live=True) == {"S"}


def test_one_cause_one_code() -> None:
    made = trace(
        "Z F(wrapper=ddp) B(wrapper=ddp, no_sync, sync) F(wrapper=ddp) B(wrapper=ddp, sync) S"
    )
    assert {f.code for f in judge(made) if f.code.startswith("FL3")} == {"FL302"}


def objects(**facts) -> tuple[Object, ...]:
    at = Location("train.py", 99)
    known = {"type": "DistributedSampler", "shuffle": True, **facts}
    return (
        Sampler("sampler", at, **known),
        Sampler("other", **known),
        Sampler("elsewhere", strength=Strength.PRESUMED),
        Loader("loader", sampler="sampler"),
    )


def test_a_second_experiment_has_an_optimizer_of_its_own() -> None:
    optimizers = {
        "first": {"parameters": frozenset({"a"})},
        "second": {"parameters": frozenset({"b"})},
    }
    anew = "Z:first F B S:first replace(what=recreated, parameters=a) "
    assert found("FL306", anew + "Z:second F B S:second", optimizers) == set()
    assert found("FL306", anew + "Z:first F B S:first", optimizers) == {"replace"}


EPOCH = "E(loader=loader) D(loader=loader) Z F B S X(loader=loader) "


@pytest.mark.parametrize(
    ("text", "facts", "reported"),
    [
        (EPOCH * 2, {}, True),
        (EPOCH, {}, False),
        (f"sampler_epoch(sampler=sampler) {EPOCH}" * 2, {}, False),
        (f"sampler_epoch {EPOCH}" * 2, {}, False),
        (f"sampler_epoch(sampler=other) {EPOCH}" * 2, {}, True),
        (f"sampler_epoch(sampler=elsewhere) {EPOCH}" * 2, {}, False),
        (EPOCH * 2, {"shuffle": False}, False),
        (EPOCH * 2, {"shuffle": None}, False),
        ("E(loader=loader) F(!grad) X(loader=loader) Z F B S " * 2, {}, False),  # validation
        (f"O {EPOCH}" * 2, {}, False),
    ],
)
def test_sampler_epoch(text: str, facts: dict[str, object], reported: bool) -> None:
    rule = rule_by_code("FL303")
    assert rule is not None
    findings = list(rule.check(trace(text, None, objects(**facts))))
    assert [f.at.line for f in findings] == ([99] if reported else [])


GUARDS = [
    "if dist.get_rank() == 0:\n    SAVE",
    "if args.local_rank in (-1, 0):\n    SAVE",
    "if not dist.is_initialized() or dist.get_rank() == 0:\n    SAVE",
    "if utils.is_main_process():\n    SAVE",
    "if is_master:\n    SAVE",
    "if gpu == 0:\n    SAVE",
    "main = dist.get_rank() == 0\nif main:\n    SAVE",
    "for epoch in range(3):\n    if dist.get_rank() != 0:\n        continue\n    SAVE",
    "def f():\n    if dist.get_rank() > 0:\n        return\n    SAVE\nf()",
    "@rank_zero_only\ndef f():\n    SAVE\nf()",
    "def f():\n    SAVE\nif dist.get_rank() == 0:\n    f()",
    "def save_on_master():\n    SAVE\nsave_on_master()",
    "dist.get_rank() == 0 and SAVE",
    "def f(path):\n    torch.save(model, path)\nf(f'{dist.get_rank()}.pt')",
    "torch.save(model, 'model_%d.pt' % dist.get_rank())",
    "def f():\n    SAVE",  # called from somewhere else, which may guard it
]


@pytest.mark.parametrize("guard", GUARDS)
def test_a_rank_guard_of_any_kind(guard: str) -> None:
    head = (
        "import torch, utils\nimport torch.distributed as dist\ndist.init_process_group('nccl')\n"
    )
    text = head + guard.replace("SAVE", "torch.save(model.state_dict(), 'model.pt')") + "\n"
    assert "FL305" not in {f.code for f in read_text(text, "train.py")}


def test_saved_by_a_helper_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("helpers.py").write_text(
        "import torch\n\ndef save(model):\n    torch.save(model.state_dict(), 'model.pt')\n"
    )
    main = "import torch\nimport torch.distributed as dist\nfrom helpers import save\ndist.init_process_group('nccl')\n"
    Path("train.py").write_text(main + "save(model)\n")
    assert ("FL305", "helpers.py", 4) in _places("train.py")
    Path("train.py").write_text(main + "if dist.get_rank() == 0:\n    save(model)\n")
    assert not any(code == "FL305" for code, _, _ in _places("train.py"))


def test_saved_by_a_method_of_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        "import torch\n\nclass Net:\n    def __init__(self, net):\n        self.net = net\n\n"
        "    def save(self, path):\n        torch.save(self.net.state_dict(), path)\n"
    )
    main = "import torch\nimport torch.distributed as dist\nfrom model import Net\ndist.init_process_group('nccl')\nmodel = Net(torch.nn.Linear(2, 2))\n"
    Path("train.py").write_text(main + "model.save('model.pt')\n")
    assert ("FL305", "train.py", 6) in _places("train.py")
    Path("train.py").write_text(main + "if dist.get_rank() == 0:\n    model.save('model.pt')\n")
    assert not any(code == "FL305" for code, _, _ in _places("train.py"))


@pytest.mark.parametrize(
    ("test", "found"), [("rank > -1", True), ("torch.distributed.get_rank() == 0", False)]
)
def test_saved_by_a_helper_that_is_not_told_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: str, found: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("helpers.py").write_text(
        f"import torch\n\ndef save(model, path, rank=-1):\n    if {test}:\n        if rank == 0:\n"
        "            torch.save(model.state_dict(), path)\n    else:\n        torch.save(model.state_dict(), path)\n"
    )
    Path("train.py").write_text(
        "import torch\nimport torch.distributed as dist\nfrom helpers import save\ndist.init_process_group('nccl')\n"
        "if rank == 0:\n    save(model, 'last.pt', rank)\nsave(model, 'best.pt')\n"
    )
    assert (("FL305", "train.py", 7) in _places("train.py")) is found


@pytest.mark.parametrize(
    ("method", "loop", "found"),
    [
        ("", "loader.sampler.set_epoch(epoch)", True),
        ("", "loader.batch_sampler.sampler.set_epoch(epoch)", False),
        (
            "    def set_epoch(self, epoch):\n        self.sampler.set_epoch(epoch)\n",
            "loader.sampler.set_epoch(epoch)",
            False,
        ),
    ],
)
def test_the_epoch_stops_at_a_batch_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, loop: str, found: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.py").write_text(f"""\
import torch
from torch.utils.data import DataLoader, DistributedSampler


class BucketBatchSampler(torch.utils.data.BatchSampler):
    def __init__(self, sampler, size):
        self.sampler, self.size = sampler, size

{method}
    def __iter__(self):
        yield from super().__iter__()


def loaders(data, size, shuffle):
    sampler = DistributedSampler(data, shuffle=shuffle)
    batches = BucketBatchSampler(sampler, size)
    return DataLoader(data, batch_sampler=batches)
""")
    Path("train.py").write_text(
        f"from data import loaders\nloader = loaders(data, 8, True)\nfor epoch in range(9):\n    {loop}\n    for batch in loader:\n        step(batch)\n"
    )
    line = 15 if not method else 17
    places = {(c, p) for c, p, at in _places("data.py", "train.py") if abs(at - line) < 2}
    assert (("FL303", "data.py") in places) is found


@pytest.mark.parametrize(("body", "found"), [("pass", True), ("self.sampler.set_epoch(epoch)", False)])  # fmt: skip
def test_a_sampler_that_a_class_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, found: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.py").write_text("def tell(sampler, epoch):\n    sampler.set_epoch(epoch)\n")
    Path("train.py").write_text(f"""\
from torch.utils.data import DataLoader, DistributedSampler


class Learner:
    def __init__(self, data):
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, 8, sampler=self.sampler)

    def fit(self, epochs):
        for epoch in range(epochs):
            {body}
            for batch in self.loader:
                self.update(batch)
""")
    assert (("FL303", "train.py", 6) in _places("train.py", "other.py")) is found


def test_a_sampler_in_a_batch_sampler_that_is_told_itself() -> None:
    text = """\
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler


def main(data):
    sampler = DistributedSampler(data)
    batches = BatchSampler(sampler, 8, drop_last=True)
    loader = DataLoader(data, batch_sampler=batches)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in loader:
            step(batch)
"""
    assert "FL303" not in {f.code for f in read_text(text)}


@pytest.mark.parametrize(
    ("loop", "told", "found"),
    [
        ("self.loader", "pass", True),
        ("self.loader", "self.loader.sampler.set_epoch(epoch)", False),
        ("prepared(self.loader)", "pass", False),  # somebody else has it, too
    ],
)
def test_a_loader_that_one_method_makes_and_another_goes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str, told: str, found: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other.py").write_text("def tell(sampler, epoch):\n    sampler.set_epoch(epoch)\n")
    Path("train.py").write_text(f"""\
from torch.utils.data import DataLoader, DistributedSampler

from other import prepared


class Recipe:
    def setup(self, data):
        self.loader, self.size = self.loaders(data)

    def loaders(self, data):
        sampler = DistributedSampler(data)
        loader = DataLoader(data, 8, sampler=sampler)
        return loader, len(data)

    def fit(self, epochs):
        for epoch in range(epochs):
            {told}
            for batch in {loop}:
                self.update(batch)
""")
    assert (("FL303", "train.py", 11) in _places("train.py", "other.py")) is found


@pytest.mark.parametrize(
    ("given", "end", "found"),
    [
        ("None", "return loader", True),
        ("sampler", "return loader", False),
        ("None", "return sampler, loader", True),
        ("None", "return sampler", False),  # whoever gets it makes another loader
    ],
)
def test_a_sampler_that_its_loader_never_gets(given: str, end: str, found: bool) -> None:
    """A different function has a sampler of the same name, and gives it to its own loader."""
    text = f"""\
from torch.utils.data import DataLoader, DistributedSampler


def training(data):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler={given})
    {end}


def checks(other):
    sampler = DistributedSampler(other, shuffle=False)
    return DataLoader(other, 8, sampler=sampler)
"""
    assert (("FL304", 6) in {(f.code, f.at.line) for f in read_text(text)}) is found


def _places(*paths: str) -> set[tuple[str, str, int]]:
    return {
        (f.code, f.at.path, f.at.line) for reading in read_paths(paths) for f in reading.findings
    }


@pytest.mark.parametrize(
    ("wrapping", "late"),
    [
        ("model = DDP(net)\nmodel.cuda()", True),
        ("model = DDP(net)\nnet.to('cuda')", True),
        ("device = torch.device('cuda')\nmodel = DDP(net)\nmodel.to(device)", True),
        ("model = DDP(net.cuda())\nmodel = model.to('cuda')", False),  # it was there before
        ("model = DDP(net)\nmodel.to(memory_format=torch.channels_last)", False),
        ("model = DDP(net)\nmodel.to(torch.bfloat16)", False),
    ],
)
def test_moved_after_ddp_wrapped_it(wrapping: str, late: bool) -> None:
    text = f"""\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

net = torch.nn.Linear(3, 3)
{wrapping}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(torch.randn(8, 3)):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""
    assert ("FL306" in {f.code for f in read_text(text)}) is late
