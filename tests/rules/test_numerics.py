"""The numerics rules: the shapes they must see, the look-alikes they must leave alone, and proof that the specimens do harm."""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from fallline.flow.ranges import range_of
from fallline.rules import rule_by_code
from fallline.syntax import Project, Source
from fallline.syntax.edits import apply
from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_data, read_text
from traces import codes, trace

torch = pytest.importorskip("torch")

HEAD = """\
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
x, y, z = torch.randn(3, 4), torch.tensor([0, 1, 2]), torch.randn(3, 4)
net = make_net()
"""


def numerics(text: str) -> list[str]:
    """The codes of the FL6 findings that are not mere information."""
    return sorted(
        {
            f.code
            for f in read_text(HEAD + text)
            if f.code.startswith("FL6") and f.severity != "info"
        }
    )


def noted(text: str) -> list[str]:
    """The codes of all FL6 findings. Where no caller is in view, or where 0 is far away, they are notes."""
    return sorted({f.code for f in read_text(HEAD + text) if f.code.startswith("FL6")})


MISTAKES = [
    (
        "FL601",
        "D = Discriminator()\nloss = -torch.mean(torch.log(D(x)) + torch.log(1 - D(z)))\nloss.backward()\n",
    ),
    (
        "FL601",
        "p = F.softmax(net(x), -1)\nentropy = -(p * torch.log(p)).sum(-1)\nloss = z.sum() - entropy.mean()\n",
    ),
    (
        "FL601",
        "def f(v):\n    return -torch.log(1 - torch.sigmoid(v)).mean()\nloss = f(net(x))\nloss.backward()\n",
    ),
    (
        "FL601",
        "def vae_loss(recon, x):\n    return -(x * torch.log(recon) + (1 - x) * torch.log(1 - recon)).sum()\n",
    ),
    (
        "FL601",
        "v = net(z)\nloss = torch.where(v > 0, torch.log(v), torch.zeros_like(v)).mean()\nloss.backward()\n",
    ),
    ("FL601", "loss = -torch.log(F.relu(net(z))).mean()\nloss.backward()\n"),
    (
        "FL601",
        "s = F.cosine_similarity(x, z)\nloss = -torch.log(s + 1e-6).mean()\nloss.backward()\n",
    ),
    (
        "FL601",
        "def train_generator(D, fake):\n    loss = -torch.log(torch.sigmoid(D(fake))).mean()\n    loss.backward()\n",
    ),
    (
        "FL602",
        "m = nn.Linear(4, 1)\ndef f_loss(v, t):\n    return (t / (v + 1e-8)).mean()\nloss = f_loss(m(x), 1)\n",
    ),
    (
        "FL603",
        "def loss_fn(pred, target):\n    d = pred - target\n    return torch.sqrt(torch.clamp(d ** 2, min=0)).mean()\n",
    ),
    (
        "FL603",
        "def pair_loss(a, b):\n    d = a.pow(2).sum(1)[:, None] + b.pow(2).sum(1) - 2 * a @ b.T\n    return torch.sqrt(d).mean()\n",
    ),
    (
        "FL603",
        "class Norm(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.weight = nn.Parameter(torch.ones(4))\n"
        "    def forward(self, v):\n        return self.weight * torch.rsqrt((v ** 2).mean())\n",
    ),
    ("FL603", "def std_loss(v):\n    return F.relu(1 - torch.sqrt(v.var(dim=0))).mean()\n"),
    (
        "FL605",
        "def ce(logits, t):\n    return -torch.sum(t * torch.log(F.softmax(logits, dim=1)), dim=1).mean()\n",
    ),
    (
        "FL605",
        "def f(v):\n    lp = torch.log(F.softmax(v, dim=1))\n    nll = -lp[range(3), y]\n    return nll.mean()\n",
    ),
    (
        "FL605",
        "criterion = nn.NLLLoss()\np = torch.softmax(net(x), dim=1)\nloss = criterion(torch.log(p), y)\nloss.backward()\n",
    ),
    (
        "FL605",
        "def my_loss(v):\n    e = torch.exp(v)\n    return -torch.log(e[range(3), y] / e.sum(1)).mean()\n",
    ),
    (
        "FL605",
        "def focal_loss(v):\n    pt = torch.softmax(v, 1).gather(1, y[:, None])\n    return (-(1 - pt) ** 2 * torch.log(pt)).mean()\n",
    ),
    (
        "FL605",
        "out = F.softmax(net(x), dim=1)\nloss = nn.NLLLoss()(out.log(), y)\nloss.backward()\n",
    ),
    (
        "FL605",
        "def distill_loss(s, t):\n    return F.kl_div(F.softmax(s / 2, dim=1).log(), t, reduction='batchmean')\n",
    ),
    (
        "FL605",
        "from torch.nn.functional import softmax\ndef ce_loss(v):\n    return -softmax(v, dim=1).log()[range(3), y].mean()\n",
    ),
    ("FL606", "criterion = nn.CrossEntropyLoss()\nloss = criterion(F.softmax(net(x), dim=1), y)\n"),
    (
        "FL606",
        "out = net(x)\nout = torch.sigmoid(out)\nloss = F.binary_cross_entropy_with_logits(out, z)\n",
    ),
    (
        "FL606",
        "def build():\n    return nn.Sequential(nn.Linear(4, 5), nn.Softmax(dim=-1))\nm = build().cuda()\nloss = F.cross_entropy(m(x), y)\n",
    ),
    (
        "FL608",
        "loss = net(x).mean()\nif torch.isnan(loss).any():\n    loss = torch.tensor(0.0, requires_grad=True)\nloss.backward()\n",
    ),
    (
        "FL608",
        "loss = net(x).mean()\nif math.isnan(loss.item()):\n    loss = loss * 0\nloss.backward()\n",
    ),
    (
        "FL608",
        "loss = net(x).mean()\nloss = torch.where(torch.isnan(loss), torch.zeros_like(loss), loss)\nloss.backward()\n",
    ),
    ("FL608", "loss = net(x)\nloss[loss != loss] = 0\nloss.mean().backward()\n"),
    ("FL608", "for p in net.parameters():\n    p.grad = torch.nan_to_num(p.grad)\n"),
    ("FL608", "try:\n    net(x).mean().backward()\nexcept:\n    pass\n"),
    (
        "FL608",
        "loss = net(x).mean()\nloss = loss if torch.isfinite(loss) else torch.zeros_like(loss)\nloss.backward()\n",
    ),
]

# Only a name says what the value is, or nothing shows that a gradient flows: told, but as a note.
GUESSES = [
    (
        "FL603",
        "criterion = nn.MSELoss()\nloss = torch.sqrt(criterion(net(x), z))\nloss.backward()\n",
    ),
    ("FL602", "loss = z.sum() / (y != -100).sum()\nloss.backward()\n"),
    ("FL603", "loss = F.mse_loss(z, x) ** 0.5\nloss.backward()\n"),
    ("FL603", "loss = ((x - z) ** 2).sum().sqrt()\nloss.backward()\n"),
    ("FL602", "a = (z - z.mean()) / z.std()\npg_loss = -(x * a).mean()\npg_loss.backward()\n"),
    (
        "FL605",
        "def my_loss(v, onehot):\n    p = v.softmax(-1)\n    return -torch.log((p * onehot).sum(1) + 1e-7).mean()\n",
    ),
    (
        "FL602",
        "def dice_loss(p, target):\n    mask = target > 0\n    return 1 - (p * mask).sum() / mask.sum()\n",
    ),
    ("FL601", "def loss_fn(pred, target):\n    return -torch.log(pred).mean()\n"),
    ("FL601", "def loss_fn(pred, target):\n    return -torch.log(pred - target + 1e-8).mean()\n"),
    ("FL601", "def kl_div(p, q):\n    return (p * (p.log() - q.log())).sum()\n"),
    ("FL602", "def loss_fn(pred, target):\n    return (target / pred).mean()\n"),
    ("FL602", "mask = make_mask(x)\nloss = (z * mask).sum() / mask.float().sum()\n"),
    ("FL602", "def mape_loss(pred, target):\n    return ((pred - target).abs() / target).mean()\n"),
    (
        "FL603",
        "class Norm(nn.Module):\n    def forward(self, v):\n        m = v.mean()\n        return torch.rsqrt(((v - m) ** 2).mean())\n",
    ),
]

LOOK_ALIKES = [
    "p = torch.sigmoid(net(x))\nbce_loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p))\nprint(torch.mean(bce_loss).detach().item())\n",
    "def gate_entropy_loss(v):\n    p = v.softmax(1)\n    return -torch.mul(p, torch.log(p + 1e-10)).sum(1).mean()\n",
    "def loss_fn(pred, target):\n    return -torch.log(pred + 1e-8).mean()\n",
    "loss = -torch.log(torch.sigmoid(net(z)) + 1e-8).mean()\nloss.backward()\n",
    "loss = -torch.log(torch.clamp(net(z), 1e-6, 1)).mean()\nloss.backward()\n",
    "def step(self, loss):\n    self.log('train_loss', loss)\n    logger.log(loss)\n",
    "def f_loss(pred):\n    pred[pred < 1e-10] = 1e-10\n    return torch.log(pred).mean()\n",
    "def f_loss(pred):\n    if (pred <= 0).any():\n        raise ValueError\n    return torch.log(pred).mean()\n",
    "@torch.no_grad()\ndef nll_metric(probs):\n    return -torch.log(probs).mean()\n",
    "def exp_loss(logits, m):\n    exp_logits = torch.exp(logits - logits.max()) * m\n    return torch.log(exp_logits.sum(1)).mean()\n",
    "mask = make_mask(x)\nloss = (z * mask).sum() / max(mask.sum(), 1)\n",
    "mask = make_mask(x)\nloss = (z * mask).sum() / (mask.sum() + 1e-6)\n",
    "mask = make_mask(x)\nif mask.any():\n    loss = (z * mask).sum() / mask.sum()\n",
    "mask = make_mask(x)\nn = mask.sum()\nloss = (z * mask).sum() / n if n > 0 else z.sum() * 0\n",
    "def mask_loss(losses, num_masks):\n    return losses.sum() / num_masks\n",
    "def f_loss(logits):\n    return (logits / self.config.final_logit_softcapping).mean()\n",
    "def f_loss(h, attention_mask):\n    return ((h * attention_mask).sum(1) / attention_mask.sum(1)).mean()\n",
    "def smooth_loss(loss, beta):\n    return torch.where(loss < beta, 0.5 * loss**2 / beta, loss).mean()\n",
    "def pair_loss(a, b):\n    d = a.pow(2).sum(1)[:, None] - 2 * a @ b.T\n    return torch.sqrt(d.clamp(min=1e-12)).mean()\n",
    "def noise_loss(sigma, noise_level):\n    return 1 / torch.sqrt(sigma**2 + noise_level**2)\n",
    "def flow_loss(flow, flow_gt):\n    return (flow * torch.sum(flow_gt**2, dim=1).sqrt()).mean()\n",
    "g = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]\nloss = ((g.norm(2, dim=1) - 1) ** 2).mean()\nloss.backward()\n",
    "loss = F.cross_entropy(net(x), F.softmax(z, dim=1))\n",
    "loss = F.cross_entropy(F.log_softmax(net(x), dim=1), y)\n",
    "loss = F.binary_cross_entropy(torch.sigmoid(net(x)), z)\n",
    "p = F.softmax(net(x), dim=1)\nif x.mean() > 0:\n    p = net(x)\nloss = F.cross_entropy(p, y)\n",
    "for i in range(3):\n    loss = net(x).mean()\n    if not torch.isfinite(loss):\n        continue\n    loss.backward()\n",
    "try:\n    net(x).mean().backward()\nexcept RuntimeError as error:\n    print(error)\n",
    "try:\n    net(x).mean().backward()\nexcept torch.cuda.OutOfMemoryError:\n    pass\n",
    "def entropy_loss(v):\n    p = v.softmax(-1)\n    q = p.flatten(1)\n    return (-q * q.clamp(min=1e-5).log()).sum(-1).mean()\n",
    "def f_loss(a, k):\n    return torch.sqrt(F.conv2d(a.pow(2), k) + 1e-8).mean()\n",
    "def precision_loss(log_var):\n    p = 1 / (log_var.exp() + 1e-7)\n    return (1 / p).mean()\n",
    "import numpy as np\ndef kl_divergence(p, q):\n    return (p * np.log(p / q)).sum()\n",
    "features = torch.nan_to_num(x)\nloss = net(features).mean()\nloss.backward()\n",
]


@pytest.mark.parametrize(("code", "text"), MISTAKES)
def test_a_mistake_is_seen_in_every_shape(code: str, text: str) -> None:
    assert code in noted(text)


@pytest.mark.parametrize(("code", "text"), GUESSES)
def test_what_is_unlikely_or_only_a_name_says_is_a_note(code: str, text: str) -> None:
    assert numerics(text) == []
    assert code in {f.code for f in read_text(HEAD + text)}


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_a_look_alike_is_left_alone(text: str) -> None:
    assert numerics(text) == []


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        ("torch.sigmoid(x)", 0, 1),
        ("1 - x.softmax(-1)", 0, 1),
        ("torch.sigmoid(x) + 1e-6", 1e-6, 1 + 1e-6),
        ("x.clamp(min=1e-3)", 1e-3, 1e-3),
        ("torch.tanh(x).abs()", 0, 1),
        ("2 * torch.tanh(x) ** 2", 0, 2),
        ("F.relu(x).clamp(max=5)", 0, 5),
        ("torch.maximum(F.relu(x), torch.tensor(1.0))", 1, float("inf")),
        ("(x > 0).sum()", 0, float("inf")),
        ("-F.log_softmax(x, 1)", 0, float("inf")),
        ("F.normalize(x) @ F.normalize(x).T / 0.5", -2, 2),
    ],
)
def test_ranges(expression: str, low: float, high: float) -> None:
    found = _range(expression)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    "expression",
    ["x", "x + 1", "frobnicate(x)", "x[x > 0]", "F.softmax(x, 1).sum()", "x * F.relu(x)"],
)
def test_what_is_not_known_has_no_range(expression: str) -> None:
    assert _range(expression) is None


def _range(expression: str):
    text = f"import torch\nimport torch.nn.functional as F\ndef f(x):\n    return {expression}\n"
    module = Project().add(Source("f.py", text))
    return range_of(module, module.all(ast.Return)[0].value)


@pytest.mark.parametrize("imported", ["from model import Net", "from model import *"])
def test_the_softmax_may_be_in_another_file(tmp_path: Path, imported: str) -> None:
    (tmp_path / "model.py").write_text(
        "import torch.nn as nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))\n"
        "    def forward(self, x):\n        return self.layers(x)\n"
    )
    (tmp_path / "train.py").write_text(
        f"import torch\nfrom torch import nn\n{imported}\n\nmodel = Net().to('cpu')\nmodel = nn.DataParallel(model)\n"
        "criterion = nn.CrossEntropyLoss()\nfor x, y in loader:\n    out = model(x)\n    loss = criterion(out, y)\n"
    )
    readings = read_paths(
        [str(tmp_path / "train.py"), str(tmp_path / "model.py")], roots=[str(tmp_path)]
    )
    found = [f for r in readings for f in r.findings if f.code == "FL606"]
    assert [f.at.line for f in found] == [10]
    assert found[0].evidence["squashed_at"].endswith("model.py:5")


def test_the_fix_of_a_double_softmax_leaves_the_probabilities_to_others() -> None:
    text = (
        HEAD
        + "logits = net(x)\nprobs = F.softmax(logits, dim=1)\nloss = F.cross_entropy(probs, y)\nprint(probs.argmax(1))\n"
    )
    (finding,) = [f for f in read_text(text) if f.code == "FL606"]
    assert finding.fix is not None
    fixed = apply(text, finding.fix.edits)
    assert fixed is not None
    assert "F.cross_entropy(logits, y)" in fixed and "probs = F.softmax(logits, dim=1)" in fixed


def test_one_fix_takes_care_of_its_whole_line() -> None:
    text = (
        HEAD
        + "def bce(v, t):\n    p = torch.sigmoid(v)\n    return -(t * torch.log(p) + (1 - t) * torch.log(1 - p)).mean()\n"
    )
    (finding,) = [f for f in read_text(text) if f.code == "FL601"]
    assert finding.fix is not None
    fixed = apply(text, finding.fix.edits)
    assert fixed is not None and "t * F.logsigmoid(v) + (1 - t) * F.logsigmoid(-v)" in fixed
    assert [f for f in read_text(fixed) if f.code == "FL601"] == []


def test_what_a_model_returns_besides_is_told_apart() -> None:
    net = "class Two(nn.Module):\n    def forward(self, v):\n        return v * 2, F.softmax(v, dim=1)\n\nm = Two()\n"
    assert numerics(net + "logits, probs = m(x)\nloss = F.cross_entropy(logits, y)\n") == []
    assert numerics(net + "logits, probs = m(x)\nloss = F.cross_entropy(probs, y)\n") == ["FL606"]
    assert numerics(net + "loss = F.cross_entropy(m(x)[1], y)\n") == ["FL606"]


def test_long_expressions_are_read() -> None:
    chain = " + ".join(["a * a"] * 900)
    text = (
        HEAD
        + f"def long_loss(a):\n    return torch.sqrt({chain}) / ({chain}) + torch.log({chain})\n"
    )
    reading = read_data(
        "long.py",
        text.encode(),
        Project(),
        [rule_by_code(c) for c in ("FL601", "FL602", "FL603", "FL605")],
    )
    assert reading.failures == ()


def test_a_model_does_not_run_twice_after_a_fix() -> None:
    text = (
        HEAD + "p = F.softmax(net(x), dim=1)\nloss = -torch.log(p[range(3), y]).mean()\nprint(p)\n"
    )
    (finding,) = [f for f in read_text(text) if f.code == "FL605"]
    assert finding.fix is None


def test_anomaly_mode_counts_while_training_goes_on() -> None:
    rule = rule_by_code("FL607")
    assert codes(rule, trace("anomaly Z F B S Z F B S")) == {"anomaly"}
    assert codes(rule, trace("Z F B S Z F anomaly B")) == set()
    assert codes(rule, trace("Z F B S")) == set()
    asked_for = trace("anomaly Z F B S")
    asked_for.settings = ("args.debug is true",)
    assert codes(rule, asked_for) == set()


# -- the claims, in torch --------------------------------------------------------------------------------------


@contextlib.contextmanager
def backward_watched() -> Iterator[list[bool]]:
    """For every backward(): whether the loss and all gradients that came of it are finite."""
    seen: list[bool] = []
    original = torch.Tensor.backward

    def watched(loss, *args, **kwargs):
        original(loss, *args, **kwargs)
        finite = bool(torch.isfinite(loss).all())
        queue, known = [loss.grad_fn], set()
        while queue:
            node = queue.pop()
            if node is None or node in known:
                continue
            known.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None and leaf.grad is not None:
                finite = finite and bool(torch.isfinite(leaf.grad).all())
            queue += [following for following, _ in node.next_functions]
        seen.append(finite)

    torch.Tensor.backward = watched
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield seen
    finally:
        torch.Tensor.backward = original
        torch.set_num_threads(threads)


def run(text: str) -> list[bool]:
    torch.manual_seed(0)
    with backward_watched() as seen, contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, "specimen.py", "exec"), {"__name__": "specimen"})
    return seen


def specimens(kind: str) -> list[object]:
    return [
        pytest.param(text, id=f"{code}-{number}")
        for code in ("FL601", "FL602", "FL603", "FL604", "FL605")
        for number, text in enumerate(getattr(rule_by_code(code), kind))
        # with an epsilon the loss stays finite and flat: see below
        if not (code == "FL605" and "1e-8" in text)
    ]


@pytest.mark.parametrize("text", specimens("wrong"))
def test_a_wrong_specimen_makes_a_loss_or_a_gradient_non_finite(text: str) -> None:
    assert False in run(text)


@pytest.mark.parametrize("text", specimens("right"))
def test_a_right_specimen_stays_finite(text: str) -> None:
    assert False not in run(text)


@pytest.mark.parametrize(
    "text", [p for p in specimens("wrong") if any(f.fix for f in read_text(p.values[0]))]
)
def test_a_fixed_specimen_stays_finite(text: str) -> None:
    for finding in read_text(text):
        if finding.fix is not None:
            fixed = apply(text, finding.fix.edits)
            assert fixed is not None
            assert False not in run(fixed)


def test_an_epsilon_inside_the_log_of_a_softmax_gives_no_gradient_where_it_is_needed_most() -> None:
    logits = torch.tensor([[0.0, 200.0]], requires_grad=True)
    target = torch.tensor([0])
    by_hand = -torch.log(torch.softmax(logits, 1)[0, target] + 1e-8).mean()
    assert torch.autograd.grad(by_hand, logits)[0].abs().max() == 0
    fused = torch.nn.functional.cross_entropy(logits, target)
    assert torch.autograd.grad(fused, logits)[0].abs().max() == 1


def test_a_double_softmax_cannot_reach_a_low_loss() -> None:
    perfect = torch.nn.functional.one_hot(torch.arange(10), 10).float()
    loss = torch.nn.functional.cross_entropy(perfect, torch.arange(10))
    assert loss.item() == pytest.approx(1.46, abs=0.005)
    binary = torch.nn.functional.binary_cross_entropy_with_logits(torch.ones(3), torch.ones(3))
    assert binary.item() == pytest.approx(0.31, abs=0.005)


def test_nan_to_num_gives_the_nan_back() -> None:
    x = torch.zeros(1, requires_grad=True)
    loss = torch.nan_to_num(torch.log(x).sum())
    loss.backward()
    assert torch.isfinite(loss) and torch.isnan(x.grad).all()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("torch.sum(labels * F.log_softmax(logits), dim=-1)", True),
        ("-(labels * F.log_softmax(logits)).sum(-1)", True),
        ("-(labels * F.log_softmax(logits)).sum(1)", False),  # that is what PyTorch takes, too
        ("-(labels * F.log_softmax(logits, dim=-1)).sum(-1)", False),
    ],
)
def test_a_softmax_without_a_dimension_that_is_summed_over_the_last(loss: str, said: bool) -> None:
    text = f"import torch\nimport torch.nn.functional as F\n\n\ndef cross_entropy(logits, labels):\n    return {loss}\n"
    notes = [f for f in read_text(text) if f.code == "FL609"]
    assert [str(f.severity) for f in notes] == (["info"] if said else [])


@pytest.mark.parametrize(
    ("below", "said"),
    [("w.sum()", True), ("w.mean()", True), ("w.max()", False), ("(w.mean() + 1e-8)", False)],
)
def test_errors_that_are_divided_by_their_own_mean(below: str, said: bool) -> None:
    text = f"import torch\n\n\ndef weighted_loss(x, y):\n    w = (x - y).abs()\n    return (w / {below} * x).sum()\n"
    assert ("FL602" in {f.code for f in read_text(text)}) is said
