"""Small scripts and fragments, as people paste them into questions: what is decidable in them is found, what is right stays silent."""

from __future__ import annotations

import textwrap

import pytest

from fallline.syntax import Project, Source
from fallline.verdict.reading import read_text


def serious(code: str) -> list[tuple[str, int]]:
    found = read_text(code, "pasted.py")
    return sorted(((f.code, f.at.line) for f in found if f.severity != "info"), key=lambda f: f[1])


def test_a_fragment_with_the_indentation_of_its_function_is_read() -> None:
    code = textwrap.indent(
        textwrap.dedent(
            """\
            for batch, target in loader:
                loss = criterion(model(batch), target)
                loss.backward()
                optimizer.step()
            """
        ),
        "    ",
    )
    assert serious(code) == [("FL000", 1), ("FL106", 3)]
    found = next(f for f in read_text(code) if f.code == "FL106")
    assert found.at.column == 9  # of the text as it stands


def test_one_line_between_two_levels_belongs_to_the_nearer_one() -> None:
    code = (
        "for epoch in range(3):\n"
        "     for batch, target in loader:\n"
        "         loss = nn.CrossEntropyLoss()(F.softmax(model(batch), dim=1), target)\n"
        "         optimizer.zero_grad()\n"
        "         loss.backward()\n"
        "         optimizer.step()\n"
        "      print(epoch, loss.item())\n"
    )
    assert serious(code) == [("FL606", 3), ("FL000", 7)]


def test_a_first_line_that_lost_its_indentation() -> None:
    code = (
        "total = 0\n"
        "    for batch, target in loader:\n"
        "        loss = criterion(model(batch), target)\n"
        "        loss.backward()\n"
        "        optimizer.zero_grad()\n"
        "        optimizer.step()\n"
    )
    assert ("FL105", 5) in serious(code)


def test_a_block_of_comments_only() -> None:
    code = (
        "def prepare(batch):\n"
        "    # normalise here\n"
        "\n"
        "for batch in loader:\n"
        "    loss = criterion(model(batch))\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    assert [code for code, _ in serious(code)] == ["FL000"]


@pytest.mark.parametrize(
    "broken", ["for x in loader\n    pass\n", "  a = (1,\n b = 2\n", "def f(:\n  pass\n"]
)
def test_other_mistakes_of_syntax_stay_unreadable(broken: str) -> None:
    assert [f.code for f in read_text("import torch\n" + broken + "loss.backward()\n")] == ["FL000"]


def test_names_that_nothing_defines_stand_for_what_everybody_calls_so() -> None:
    code = """\
import numpy as np

criterion = nn.CrossEntropyLoss()
for batch, target in loader:
    optimizer.zero_grad()
    loss = criterion(F.softmax(model(batch), dim=1), target)
    loss.backward()
    optimizer.step()
"""
    assert serious(code) == [("FL606", 6)]


def test_names_that_the_text_defines_are_its_own() -> None:
    text = "import numpy as np\n\n\nclass F:\n    pass\n\n\nnn = F()\nprint(F, nn, optim, np)\n"
    module = Project().add(Source("pasted.py", text))
    assert module.imports == {"np": "numpy", "optim": "torch.optim"}


COPIES = {
    "returned by a method": """\
import torch
import lightning


class Summariser(lightning.LightningModule):
    def training_step(self, batch, index):
        loss = -torch.dot(self.rewards(batch), self.scores(batch))
        loss = torch.tensor(loss, requires_grad=True)
        return loss
""",
    "the data in a Variable": """\
import torch
from torch.autograd import Variable


class Fit(torch.nn.Module):
    def forward(self, image, wanted):
        total_loss = (self.warp(image) - wanted).pow(2).mean()
        return Variable(total_loss.data, requires_grad=True)
""",
    "moved on the way": """\
import torch


def sequence_loss(decoder, words):
    loss = 0
    for word in words:
        loss += torch.nn.functional.cross_entropy(decoder(word), word)
    return torch.tensor(loss, requires_grad=True).unsqueeze(0).cuda()
""",
}


@pytest.mark.parametrize("code", COPIES.values(), ids=COPIES)
def test_a_loss_returned_as_a_copy(code: str) -> None:
    assert serious(code) == [("FL136", len(code.splitlines()) - code.endswith("loss\n"))]


def test_requires_grad_set_on_a_loss_that_is_returned() -> None:
    code = """\
def triplet(anchor, other):
    mean_loss = distances(anchor, other).mean()
    mean_loss.requires_grad = True
    return mean_loss
"""
    assert serious(code) == [("FL136", 3)]


def test_a_number_made_a_tensor_only_where_it_is_none_yet() -> None:
    code = """\
import torch


def loss_of(model, batch):
    loss = model(batch)
    if not isinstance(loss, torch.Tensor):
        loss = torch.tensor(loss, requires_grad=True)
    return loss


def start(value):
    weights = torch.tensor(value, requires_grad=True)
    return weights


def empty_loss():
    loss = torch.tensor(0.0, requires_grad=True)
    return loss
"""
    assert serious(code) == []


def test_the_place_of_the_largest_has_no_gradient() -> None:
    code = """\
import torch
from torch import nn

criterion = nn.MSELoss()


def train(model, optimizer, loader):
    for batch, labels in loader:
        optimizer.zero_grad()
        scores = model(batch)
        _, predicted = torch.max(scores, 1)
        loss = criterion(predicted.float(), labels.float())
        loss.backward()
        optimizer.step()
"""
    assert serious(code) == [("FL136", 12)]
    assert serious(code.replace("_, predicted", "predicted, _")) == []


ONE_PARAMETER = """\
import torch

top = torch.tensor(10.0, requires_grad=True)
optimizer = torch.optim.SGD([top], lr=0.01)
for update in range(100):
    means = torch.tensor(torch.linspace(1, top.detach().item(), 8), requires_grad=True)
    loss = torch.distributions.Normal(means, 1.0).log_prob(torch.randn(8)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(update, top.item())
"""


def test_a_parameter_of_which_only_the_number_is_used() -> None:
    assert serious(ONE_PARAMETER) == [("FL136", 6)]
    line = "    means = 1 + (top - 1) * torch.linspace(0, 1, 8)\n"
    lines = ONE_PARAMETER.splitlines(keepends=True)
    assert serious("".join([*lines[:5], line, *lines[6:]])) == []


BY_HAND = """\
points = torch.FloatTensor([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]])
y = torch.zeros(3, 1)
y[2:] = 1
bias = torch.ones(3, 1)
x = torch.cat((points, bias), 1)
w = torch.rand(3) - 0.5
w = nn.Parameter(w)


def squared(a, b):
    return ((a - b) ** 2).mean()


def update():
    loss = squared(torch.sigmoid(x @ w), y)
    loss.backward()
    with torch.no_grad():
        w.sub_(0.1 * w.grad)
        w.grad.zero_()


for step in range(100):
    update()
"""


def test_shapes_of_tensors_that_are_written_out() -> None:
    assert serious(BY_HAND) == [("FL139", 11)]
    assert serious(BY_HAND.replace("zeros(3, 1)", "zeros(3)")) == []
    assert serious(BY_HAND.replace("torch.rand(3)", "torch.rand(3, 1)")) == []


def test_columns_and_vectors_of_a_regression_by_hand() -> None:
    code = """\
points = Variable(torch.Tensor([[0.5], [1.5], [2.5], [4.0]]))
heights = torch.tensor([1.0, 3.0, 5.0, 8.0])
slope = Variable(torch.zeros(1, 1), requires_grad=True)
adam = torch.optim.Adam([slope], lr=0.05)
for turn in range(60):
    adam.zero_grad()
    guess = torch.matmul(points, slope)
    cost = (guess - heights).pow(2).sum()
    cost.backward()
    adam.step()
"""
    assert serious(code) == [("FL139", 8)]
    assert serious(code.replace("(guess - heights)", "(guess.view(-1) - heights)")) == []
