"""The questions that rules ask flow/, one story each."""

from __future__ import annotations

import ast

import pytest

from fallline.flow.checkpoints import loads, saves
from fallline.flow.gradients import takes_no_gradient
from fallline.flow.held import loaded_alone, saved_alone
from fallline.flow.losses import guarded, in_loss, loss_calls
from fallline.flow.makers import made_by
from fallline.flow.ranges import range_of
from fallline.flow.stacks import stack_of
from fallline.flow.unregistered import kept_layers
from fallline.flow.values import values_of
from fallline.syntax import Module, Project, Source


def read(text: str) -> Module:
    return Project().add(Source.from_bytes("train.py", text.encode()))


def last(module: Module) -> ast.expr:
    """The expression in the last line."""
    statement = module.tree.body[-1]
    assert isinstance(statement, ast.Expr)
    return statement.value


def test_where_does_this_come_from() -> None:
    module = read("x = 1\nx = f(x)\ny = x\ny\n")
    origin = values_of(module).origin(last(module))
    assert isinstance(origin, ast.Call) and module.segment(origin) == "f(x)"


def test_a_branch_makes_it_unknown_and_is_found_by_itself() -> None:
    module = read("x = 1\nif c:\n    x = g()\nx\n")
    use = last(module)
    assert isinstance(use, ast.Name)
    assert values_of(module).definition(use) is None
    ((test, value),) = values_of(module).in_one_branch(use)
    assert module.segment(test.test) == "c" and module.segment(value) == "g()"


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        ("torch.sigmoid(x)", 0, 1),
        ("1 - torch.sigmoid(x)", 0, 1),
        ("torch.softmax(x, 1).clamp(min=1e-6)", 1e-6, 1),
        ("torch.relu(x) + 1e-3", 1e-3, float("inf")),
    ],
)
def test_can_this_be_zero(expression: str, low: float, high: float) -> None:
    module = read(f"import torch\n{expression}\n")
    found = range_of(module, last(module))
    assert found is not None and (found.low, found.high) == (low, high)


def test_a_count_repeated_by_itself_is_never_zero() -> None:
    module = read("n = mask.sum()\nn.repeat_interleave(n)\n")
    assert range_of(module, last(module)) is None


def test_which_operation_made_this_through_a_method_that_returns_a_tuple() -> None:
    module = read(
        "import torch\nclass Policy(torch.nn.Module):\n"
        "    def act(self, x):\n        p = torch.softmax(x, 1)\n        return p.argmax(1), p\n"
        "policy = Policy().to('cpu')\n_, p = policy.act(x)\np\n"
    )
    made = made_by(module, last(module))
    assert made is not None and made.op == "softmax"


def test_is_this_part_of_a_loss() -> None:
    module = read("import torch\na = torch.log(x)\nloss = a.mean()\nb = torch.log(x)\nprint(b)\n")
    logs = list(module.calls("torch.log"))
    assert [in_loss(module, call) for call in logs] == [True, False]


def test_an_index_is_not_the_value() -> None:
    module = read("def f(x, i):\n    assert i > 0\n    part = x[i:]\n    return part\n")
    (returned,) = (r.value for r in module.all(ast.Return))
    assert returned is not None and not guarded(module, returned)


def test_losses_are_found_however_they_are_called() -> None:
    module = read(
        "from torch import nn\nimport torch.nn.functional as F\n"
        "criterion = nn.NLLLoss()\ncriterion(a, b)\nF.nll_loss(a, b)\nnn.NLLLoss()(a, b)\n"
    )
    assert sorted(call.lineno for call, _ in loss_calls(module, "nll_loss", "NLLLoss")) == [4, 5, 6]


def test_buffers_take_no_gradient() -> None:
    module = read(
        "import torch\nclass M(torch.nn.Module):\n    def __init__(self):\n"
        "        register_buffer = lambda n, v: self.register_buffer(n, v)\n"
        "        register_buffer('betas', torch.ones(3))\n        self.w = torch.nn.Parameter(torch.ones(3))\n"
        "    def forward(self):\n        return self.betas, self.w\n"
    )
    (pair,) = (r.value for r in module.all(ast.Return))
    assert isinstance(pair, ast.Tuple)
    assert [takes_no_gradient(module, e) for e in pair.elts] == [True, False]


def test_which_layers_does_this_list_hold() -> None:
    module = read(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, given: list[nn.Module]):\n"
        "        super().__init__()\n        self.made = [nn.Linear(2, 2)]\n        self.given = given\n"
        "        self.known = nn.ModuleList(given)\n        self.numbers = [1, 2]\n"
        "    def forward(self, x):\n        return [f(x) for f in self.made]\n"
    )
    # `given` also goes into a ModuleList, which registers what it holds
    assert [kept.name for kept in kept_layers(module)] == ["made"]


def test_which_layers_run_one_after_the_other() -> None:
    module = read("from torch import nn\n[nn.Linear(2, 2), nn.Sigmoid()] * 3 + [nn.Tanh()]\n")
    stack = stack_of(module, last(module))
    assert (stack.weights, stack.sigmoid, stack.tanh, stack.unknown) == (3, 3, 1, 0)


def test_what_is_saved_and_loaded_under_one_name() -> None:
    module = read(
        "import torch\nstate = torch.load('a.pt')\nmodel.load_state_dict(state['model'])\n"
        "state = {'model': model.state_dict(), 'step': step}\ntorch.save(state, 'a.pt')\n"
        "torch.save(optimizer.state_dict(), 'o.pt')\noptimizer.load_state_dict(torch.load('o.pt'))\n"
    )
    (loaded,) = [each for each in loads(module) if each.keys]
    assert set(loaded.keys) == {"model"} and not loaded.escapes
    assert set(saves(module)[0].entries) == {"model", "step"}
    assert saved_alone(module) == {"optimizer"} and loaded_alone(module) == {"optimizer"}


def test_what_is_made_of_itself_has_an_end() -> None:
    module = read(
        "class A:\n    def __init__(self, device):\n        self.x = self.x.to(device)\n"
        "    def loss(self):\n        return self.x\n"
    )
    (asked,) = [r.value for r in module.all(ast.Return) if r.value is not None]

    def inner(made: ast.expr) -> ast.expr | None:
        match made:
            case ast.Call(ast.Attribute(of)):
                return of
        return None

    assert isinstance(values_of(module).through(asked, inner), ast.Call)
