"""The module rules: look-alikes in source, traces by hand for the mode, and what the fixes write."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.rules import rule_by_code
from fallline.syntax import Project, Source
from fallline.syntax.edits import apply
from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text
from traces import codes, trace


def reported(code: str, text: str) -> list[int]:
    rule = rule_by_code(code)
    assert rule is not None
    module = Project().add(Source("net.py", text))
    return [finding.at.line for finding in rule.check_syntax(module)]


def fixed(code: str, text: str) -> str | None:
    """The text after the one finding of this rule is fixed; None where it offers no fix."""
    rule = rule_by_code(code)
    assert rule is not None
    module = Project().add(Source("net.py", text))
    (finding,) = rule.check_syntax(module)
    fix = rule.fix(finding, module)
    if fix is None:
        return None
    after = apply(text, fix.edits)
    assert after is not None
    assert reported(code, after) == []
    return after


NET = """\
import torch
from torch import nn
from torch.nn import functional as F
class Net(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        {body}
    def forward(self, x):
        return {result}
"""


def net(body: str = "pass", result: str = "x") -> str:
    return NET.format(body=body.replace("\n", "\n        "), result=result)


@pytest.mark.parametrize(
    "body",
    [
        "self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]",
        "self.layers = [nn.Dropout(0.1) for _ in range(n)]",
        "self.layers = {str(i): nn.Linear(2, 2) for i in range(n)}",
        "self.layers = []\nself.layers += [nn.Conv2d(1, 1, 1)]",
        "self.layers = {}\nself.layers['a'] = nn.GRU(2, 2)",
        "self.layers = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(n)]",
        "self.layers = []\nlayer = nn.Linear(2, 2)\nself.layers.append(layer)",
        "self.layers = (nn.Linear(2, 2), nn.Linear(2, 2))",
        "self.layers = list()\nself.layers.append(nn.Linear(2, 2))",
        "self.layers = [nn.Linear(2, 2)] + [nn.Linear(2, 2) for _ in range(n)]",
    ],
)
def test_layers_in_a_list(body: str) -> None:
    assert reported("FL801", net(body, "[layer(x) for layer in self.layers]")) == [7]


@pytest.mark.parametrize(
    "body",
    [
        "self.layers = []\nself.layers.append(nn.Linear(2, 2))\nself.layers = nn.ModuleList(self.layers)",
        "self.layers = [nn.Linear(2, 2)]\nself.body = nn.Sequential(*self.layers)",
        "layers = [nn.Linear(2, 2)]\nself.layers = layers\nself.body = nn.Sequential(*layers)",
        "self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]\nfor i, l in enumerate(self.layers): setattr(self, f'l{i}', l)",
        "self.layers = [nn.ReLU(), nn.MaxPool2d(2), nn.L1Loss()]",
        "self.a = nn.Linear(2, 2)\nself.layers = [self.a, self.a]",
        "self.layers = []\na = nn.Linear(2, 2)\nself.a = a\nself.layers.append(a)",
        "self.sizes = [2, 4, 8]\nself.names = {'a': 'b'}",
        "self.layers = build(n)",
    ],
)
def test_lists_that_are_registered_or_hold_no_layers(body: str) -> None:
    assert reported("FL801", net(body)) == []


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("self.layers = []\nself.layers.append(nn.Linear(2, 2))", "self.layers = nn.ModuleList()"),
        (
            "self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]",
            "self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])",
        ),
        (
            "self.layers = {'a': nn.Linear(2, 2)}",
            "self.layers = nn.ModuleDict({'a': nn.Linear(2, 2)})",
        ),
    ],
)
def test_fix_registers_layers(body: str, after: str) -> None:
    assert after in (fixed("FL801", net(body)) or "")


def test_no_fix_where_a_module_list_could_not_stand_in() -> None:
    body = "self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]\nself.layers.sort(key=id)"
    assert fixed("FL801", net(body)) is None
    assert fixed("FL801", net("self.layers = {1: nn.Linear(2, 2)}")) is None


def test_layers_whose_class_is_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text(
        "from torch import nn\n\n\nclass Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(2, 2)\n"
    )
    (tmp_path / "net.py").write_text(
        "from torch import nn\nfrom blocks import Block\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.blocks = [Block() for _ in range(3)]\n"
    )
    rule = rule_by_code("FL801")
    assert rule is not None
    paths = [str(tmp_path / "net.py"), str(tmp_path / "blocks.py")]
    found = [
        f.at.line
        for r in read_paths(paths, rules=[rule], roots=[str(tmp_path)])
        for f in r.findings
    ]
    assert found == [8]


CLASS = """\
import torch
from torch import nn
class Net({base}):
    def __init__(self, n):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("self.fc = nn.Linear(n, n)", 5),
        ("self.n = n\nself.fc = nn.Linear(n, n)\nsuper().__init__()", 6),
        ("self.w = nn.Parameter(torch.ones(n))\nsuper(Net, self).__init__()", 5),
        ("self.n = n", 4),
    ],
)
def test_super_init_missing(body: str, line: int) -> None:
    text = CLASS.format(base="nn.Module", body=body.replace("\n", "\n        "))
    assert reported("FL802", text) == [line]
    assert fixed("FL802", text) is not None


@pytest.mark.parametrize(
    ("base", "body"),
    [
        ("nn.Module", "self.n = n\nsuper().__init__()\nself.fc = nn.Linear(n, n)"),
        ("nn.Module", "nn.Module.__init__(self)\nself.fc = nn.Linear(n, n)"),
        ("nn.Module", "self.prepare(n)\nself.fc = nn.Linear(n, n)"),
        ("nn.Module", "raise NotImplementedError"),
        ("nn.Module", "return"),
        ("object", "self.fc = nn.Linear(n, n)"),
        ("Unknown", "self.fc = nn.Linear(n, n)"),
    ],
)
def test_super_init_called_or_not_needed(base: str, body: str) -> None:
    text = CLASS.format(base=base, body=body.replace("\n", "\n        "))
    assert reported("FL802", text) == []


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("self.fc.forward(x)", True),
        ("model.forward(x)", True),
        ("nn.Linear(2, 2).forward(x)", True),
        ("self.forward(x)", False),
        ("super().forward(x)", False),
        ("nn.Module.forward(self, x)", False),
        ("Function.forward(ctx, x)", False),
        ("net.forward()", False),
        ("robot.forward(x)", False),
    ],
)
def test_forward_called(expression: str, found: bool) -> None:
    text = net("self.fc = nn.Linear(2, 2)", expression)
    assert bool(reported("FL803", text)) == found
    if found:
        assert expression.replace(".forward(", "(") in (fixed("FL803", text) or "")


def test_a_network_written_by_hand_has_no_hooks() -> None:
    text = "import torch\nclass Net:\n    def forward(self, x): ...\nnet = Net()\nnet.forward(torch.ones(1))\n"
    assert reported("FL803", text) == []


TRAINED = "M(mode=train;model=m) [F(used;model=m) B S]*2"
GOES_ON = "F2(used;!training;model=m) B S"


@pytest.mark.parametrize(
    "text",
    [
        f"{TRAINED} M2(mode=eval;model=m) F3(!used;!training;!grad;model=m) {GOES_ON}",
        f"[F(used;model=m) B S]*2 M2(mode=eval;model=m) {GOES_ON}",
        f"{TRAINED} M2(mode=eval;model=m) M2(mode=eval;model=m) {GOES_ON}",
    ],
)
def test_eval_not_restored(text: str) -> None:
    rule = rule_by_code("FL804")
    assert rule is not None
    assert codes(rule, trace(text)) == {"M2"}


@pytest.mark.parametrize(
    "text",
    [
        f"{TRAINED} M2(mode=eval;model=m) F3(!used;!training;model=m) {TRAINED}",
        f"M2(mode=eval;model=m) [{GOES_ON}]*3",  # in eval mode from the start: a choice
        "M2(mode=eval;model=teacher) [F(used;model=m) F2(used;!training;model=teacher) B S]*3",
        f"{TRAINED} M2(mode=eval;model=m) F2(used;!training;model=m) B {TRAINED}",  # an attack
        f"{TRAINED} M2(mode=eval;model=m.bn) F(used;model=m) B S",
        f"{TRAINED} M2(mode=eval;model=m) F3(!used;!training;model=m)",
    ],
)
def test_eval_restored_or_meant(text: str) -> None:
    rule = rule_by_code("FL804")
    assert rule is not None
    assert codes(rule, trace(text)) == set()


def test_eval_of_a_model_that_another_optimizer_steps() -> None:
    rule = rule_by_code("FL804")
    assert rule is not None
    optimizers = {"opt": {"parameters": frozenset({"m"})}, "d": {"parameters": frozenset({"d"})}}
    text = "[F(used;model=m) B S]*2 M(mode=eval;model=m) F2(used;!training;model=m) B S2:d"
    assert codes(rule, trace(text, optimizers)) == set()


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("F.dropout(x)", True),
        ("F.dropout(x, 0.5)", True),
        ("F.alpha_dropout(input=x, p=0.1)", False),  # not the way anyone writes it: left alone
        ("nn.Dropout(0.1)(x)", True),
        ("F.dropout(x, 0.5, self.training)", False),
        ("F.dropout(x, training=True)", False),
        ("F.dropout(x, 0.0)", False),
        ("F.dropout(x, self.p * self.training)", False),
        ("F.dropout(x, **options)", False),
        ("F.dropout(x) if self.training else x", False),
    ],
)
def test_dropout(expression: str, found: bool) -> None:
    assert bool(reported("FL805", net(result=expression))) == found


@pytest.mark.parametrize(
    "method",
    [
        "def attend(self, x, dropout_p):\n        return F.dropout(x, p=dropout_p)",
        "def f(self, x):\n        return F.dropout(x)  # always applies dropout",
        "def f(self, x):\n        # this part stays non-deterministic\n        return F.dropout(x)",
        "def mc_sample(self, x):\n        return F.dropout(x)",
    ],
)
def test_dropout_that_is_meant(method: str) -> None:
    assert reported("FL805", net() + f"    {method}\n") == []


def test_fix_of_dropout_keeps_what_is_written_around_it() -> None:
    text = net(result="F.dropout(\n            (x),  # features\n            p=0.3,\n        )")
    after = fixed("FL805", text)
    assert after is not None
    assert "p=0.3, training=self.training" in after
    assert "# features" in after


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        ("*[nn.Linear(8, 8), nn.Sigmoid()] * 6", True),
        ("*[m for _ in range(12) for m in (nn.Linear(8, 8), nn.Tanh())]", True),
        ("*[nn.Linear(8, 8), nn.Sigmoid()] * 4", False),
        ("*[nn.Linear(8, 8), nn.Tanh()] * 9", False),
        ("*[nn.Linear(8, 8), nn.LayerNorm(8), nn.Sigmoid()] * 9", False),
        ("*[nn.Linear(8, 8), nn.ReLU()] * 9, nn.Sigmoid()", False),
        ("*[Block(), nn.Sigmoid()] * 9", False),
        ("*layers", False),
    ],
)
def test_saturating_deep(layers: str, found: bool) -> None:
    assert (
        bool(reported("FL806", f"from torch import nn\nmodel = nn.Sequential({layers})\n")) == found
    )


def test_xavier_keeps_tanh_alive_but_not_sigmoid() -> None:
    deep = "from torch import nn\nnet = nn.Sequential(*[nn.Linear(8, 8), nn.{act}()] * 20)\nnn.init.xavier_normal_(w)\n"
    assert reported("FL806", deep.format(act="Tanh")) == []
    assert reported("FL806", deep.format(act="Sigmoid")) == [2]


@pytest.mark.parametrize(
    ("layers", "line", "found"),
    [
        (
            "nn.ModuleList([nn.Linear(8, 8) for _ in range(20)])",
            "x = torch.sigmoid(layer(x))",
            True,
        ),
        ("nn.ModuleList([nn.Linear(8, 8) for _ in range(20)])", "x = self.act(layer(x))", True),
        ("nn.ModuleList([nn.Linear(8, 8) for _ in range(20)])", "x = layer(x).tanh()", True),
        (
            "nn.ModuleList([nn.Linear(8, 8) for _ in range(depth)])",
            "x = torch.sigmoid(layer(x))",
            False,
        ),
        (
            "nn.ModuleList([nn.Linear(8, 8) for _ in range(20)])",
            "x = x + torch.sigmoid(layer(x))",
            False,
        ),
        (
            "nn.ModuleList([nn.Linear(8, 8) for _ in range(20)])",
            "g = torch.sigmoid(layer(x))",
            False,
        ),
        ("nn.ModuleList([Block(8) for _ in range(20)])", "x = torch.sigmoid(layer(x))", False),
    ],
)
def test_saturating_loop(layers: str, line: str, found: bool) -> None:
    text = f"""\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.act = nn.Sigmoid()
        self.layers = {layers}
    def forward(self, x):
        for layer in self.layers:
            {line}
        return x
"""
    assert reported("FL806", text) == ([10] if found else [])


@pytest.mark.parametrize(
    ("value", "after"),
    [
        ("torch.zeros(n, requires_grad=True)", "nn.Parameter(torch.zeros(n))"),
        (
            "torch.zeros(n, requires_grad=True, device='cuda')",
            "nn.Parameter(torch.zeros(n, device='cuda'))",
        ),
        ("torch.randn(n).mul(0.1).requires_grad_()", "nn.Parameter(torch.randn(n).mul(0.1))"),
        ("nn.Parameter(torch.zeros(n)).to(device)", None),
        ("nn.Parameter(torch.zeros(n)) * 0.1", None),
    ],
)
def test_parameter_unregistered(value: str, after: str | None) -> None:
    text = net(f"self.w = {value}")
    assert reported("FL807", text) == [7]
    assert after is None or f"self.w = {after}\n" in (fixed("FL807", text) or "")


@pytest.mark.parametrize("switch", ["self.w.requires_grad = True", "self.w.requires_grad_()"])
def test_requires_grad_switched_on_later(switch: str) -> None:
    assert reported("FL807", net(f"self.w = torch.zeros(n)\n{switch}")) == [8]
    assert reported("FL807", net(f"self.w = nn.Parameter(torch.zeros(n))\n{switch}")) == []
    assert reported("FL807", net(f"self.w = given\n{switch}")) == []


@pytest.mark.parametrize(
    "body",
    [
        "self.w = nn.Parameter(torch.zeros(n))",
        "self.w = nn.Parameter(torch.zeros(n)).float()",
        "self.w = torch.zeros(n)",
        "self.w = torch.zeros(n, requires_grad=flag)",
        "self.w = x.requires_grad_()",
        "self.w = torch.zeros(n, requires_grad=True)\nself.opt = torch.optim.Adam([self.w])",
    ],
)
def test_tensors_that_are_fine(body: str) -> None:
    assert reported("FL807", net(body)) == []


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        ("torch.tensor(numbers, requires_grad=True).to(self.device)", [7, 8]),
        ("torch.nn.Parameter(torch.tensor(numbers))", []),
        ("torch.tensor(numbers).to(self.device)", []),
    ],
)
def test_tensors_that_a_method_makes(made: str, lines: list[int]) -> None:
    text = f"""\
import torch


class Net(torch.nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.first = self._weight(numbers)
        self.second = self._weight(numbers)

    def _weight(self, numbers):
        return {made}

    def forward(self, x):
        return x @ self.first @ self.second
"""
    assert [f.at.line for f in read_text(text) if f.code == "FL807"] == lines
