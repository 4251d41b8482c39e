"""The autograd rules: the shapes they must see, the look-alikes they must leave alone, and what torch does with both."""

from __future__ import annotations

import contextlib
import gc
import io
import textwrap
import weakref

import pytest

from fallline.rules import rule_by_code
from fallline.syntax.edits import apply
from fallline.verdict.reading import read_text

torch = pytest.importorskip("torch")


def codes(
    body: str, base: str = "torch.autograd.Function", after: str = ""
) -> list[tuple[str, int]]:
    """The FL9 findings in a Function with this body, by code and line of the body."""
    head = (
        f"import torch\nfrom torch.autograd.function import once_differentiable\nclass F({base}):\n"
    )
    text = head + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n" + after
    return [(f.code, f.at.line - 3) for f in read_text(text) if f.code.startswith("FL9")]


STATIC = "@staticmethod\n"


def function(forward: str, backward: str) -> str:
    return f"{STATIC}def forward({forward}\n{STATIC}def backward({backward}\n"


MISTAKES = [
    (
        "FL901",
        function("ctx, x):\n    ctx.x = x\n    return x**2", "ctx, g):\n    return 2 * ctx.x * g"),
    ),
    ("FL904", function("ctx, x):\n    x *= 2\n    return x", "ctx, g):\n    return g * 2")),
    (
        "FL901",
        function(
            "ctx, x, w):\n    ctx.x, ctx.n = x, 3\n    return torch.mul(x, w)",
            "ctx, g):\n    return g * ctx.x, None",
        ),
    ),
    (
        "FL901",
        function(
            "ctx, x):\n    y = x.exp()\n    ctx.y = y\n    return y",
            "ctx, g):\n    return g * ctx.y",
        ),
    ),
    ("FL902", function("ctx, x, k):\n    return x * k", "ctx, g):\n    return g")),
    (
        "FL902",
        function(
            "ctx, x, k):\n    return x * k",
            "ctx, g):\n    grad = g.clone()\n    grad[g > 1] = 1\n    return grad",
        ),
    ),
    (
        "FL902",
        function(
            "ctx, x, k):\n    return x * k",
            "ctx, g):\n    grad = None\n    if ctx.needs_input_grad[0]:\n        grad = g * 2\n    return grad",
        ),
    ),
    ("FL902", function("ctx, x, a, b):\n    return x", "ctx, g):\n    return g, None")),
    ("FL902", function("ctx, x):\n    return x", "ctx, g):\n    return g, g * 2")),
    ("FL904", function("ctx, x):\n    x[x.abs() < 1] = 0\n    return x", "ctx, g):\n    return g")),
    (
        "FL904",
        function(
            "ctx, x):\n    y = x.detach()\n    y.add_(1)\n    return y", "ctx, g):\n    return g"
        ),
    ),
    (
        "FL904",
        function("ctx, x):\n    torch.add(x, 1, out=x)\n    return x", "ctx, g):\n    return g"),
    ),
    (
        "FL904",
        function(
            "ctx, x):\n    torch.nn.functional.relu(x, inplace=True)\n    return x",
            "ctx, g):\n    return g",
        ),
    ),
]

LOOK_ALIKES = [
    function(
        "ctx, x, n: 'Union[int, torch.Tensor]'):\n    ctx.n = n\n    return x[n:]",
        "ctx, g):\n    return g * ctx.n, None",
    ),
    function(
        "ctx, x, k):\n    i = x.argsort()\n    ctx.mark_non_differentiable(i)\n    return i",
        "ctx, g):\n    return ()",
    ),
    function(
        "ctx, x, w):\n    ctx.scale, ctx.shape = w, x.shape\n    return x * w",
        "ctx, g):\n    return g * ctx.scale, None",
    ),
    function(
        "ctx, x):\n    ctx.mask = x > 0\n    return x.clamp(min=0)",
        "ctx, g):\n    return g * ctx.mask",
    ),
    function("ctx, x, *rest):\n    return x", "ctx, g):\n    return g"),
    function(
        "ctx, x, k):\n    return x * k",
        "ctx, *grads):\n    return tuple(g * 2 for g in grads) + (None,)",
    ),
    function("ctx, x, k):\n    return x * k", "ctx, g):\n    return (g, *[None])"),
    function("ctx, x, k):\n    return x * k", "ctx, g):\n    return kernel.backward(g)"),
    function("ctx, x, k):\n    return x * k", "ctx, g):\n    raise NotImplementedError"),
    function(
        "ctx, x, k):\n    return x * k",
        "ctx, g):\n    def inner(v):\n        return v\n    return inner(g), None",
    ),
    function(
        "ctx, x):\n    y = x.clone()\n    y.add_(1)\n    y[0] = 2\n    return y",
        "ctx, g):\n    return g",
    ),
    function(
        "ctx, x, count):\n    count += 1\n    return x * count", "ctx, g):\n    return g, None"
    ),
    function(
        "ctx, x, running_mean):\n    running_mean.mul_(0.9)\n    return x",
        "ctx, g):\n    return g, None",
    ),
    function(
        "ctx, x):\n    x.add_(1)\n    ctx.mark_dirty(x)\n    return x",
        "ctx, g):\n    g.mul_(2)\n    return g",
    ),
]


@pytest.mark.parametrize(("code", "body"), MISTAKES)
def test_a_mistake_is_seen_in_every_shape(code: str, body: str) -> None:
    assert [found for found, _ in codes(body)] == [code]


@pytest.mark.parametrize("body", LOOK_ALIKES)
def test_a_look_alike_is_left_alone(body: str) -> None:
    assert codes(body) == []


def test_the_calls_of_apply_say_how_many_inputs_there_are() -> None:
    body = function("ctx, x, k=2):\n    return x * k", "ctx, g):\n    return g * 2")
    assert codes(body, after="F.apply(torch.ones(3))\n") == []
    assert [c for c, _ in codes(body, after="F.apply(torch.ones(3), 4)\n")] == ["FL902"]


def test_a_class_that_is_no_function_is_not_asked() -> None:
    body = "def forward(self, x):\n    self.x = x\n    return x\ndef backward(self, g):\n    return g, g\n"
    assert codes(body, base="torch.nn.Module") == []
    assert codes(body, base="object") == []


def test_static_is_put_above_other_decorators() -> None:
    text = textwrap.dedent(
        """\
        import torch
        from torch.autograd.function import once_differentiable


        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @once_differentiable
            def backward(ctx, gradient):
                return gradient * 2
        """
    )
    (finding,) = [f for f in read_text(text) if f.code == "FL903"]
    assert finding.at.line == 11
    assert finding.fix is not None
    fixed = apply(text, finding.fix.edits)
    assert (
        fixed is not None
        and "    @staticmethod\n    @once_differentiable\n    def backward" in fixed
    )


def test_an_old_style_function_is_not_half_repaired() -> None:
    text = rule_by_code("FL903").wrong[1]
    assert [f.fix for f in read_text(text) if f.code == "FL903"] == [None]


# -- what torch does ---------------------------------------------------------------------------------------------


def run(text: str) -> str:
    """What a specimen printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "specimen.py", "exec"), {"__name__": "specimen"})
    return out.getvalue()


@pytest.mark.parametrize("text", rule_by_code("FL902").wrong)
def test_a_wrong_number_of_gradients_raises(text: str) -> None:
    assert "returned an incorrect number of gradients" in run(text)


@pytest.mark.parametrize(
    "text", [t for code in ("FL901", "FL902", "FL903", "FL904") for t in rule_by_code(code).right]
)
def test_right_specimens_run(text: str) -> None:
    run(text)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_an_old_style_function_raises() -> None:
    assert "Legacy autograd function" in run(rule_by_code("FL903").wrong[1])


@pytest.mark.parametrize(("declared", "gradient"), [(False, 24.0), (True, 72.0)])
def test_an_undeclared_change_in_place_gives_a_wrong_gradient(
    declared: bool, gradient: float
) -> None:
    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(3)
            if declared:
                ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 3

    weight = torch.ones(1, requires_grad=True)
    changed = weight * 2
    Triple.apply(changed)
    (changed * changed).sum().backward()
    assert weight.grad.item() == gradient


def _square(saved: bool):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            if saved:
                ctx.save_for_backward(x, y)
            else:
                ctx.x, ctx.y = x, y
            return y

        @staticmethod
        def backward(ctx, grad_output):
            x = ctx.saved_tensors[0] if saved else ctx.x
            return 2 * x * grad_output

    return Square


def test_an_attribute_of_ctx_misses_a_change_that_a_saved_tensor_notices() -> None:
    for saved in (False, True):
        weight = torch.ones(1, requires_grad=True)
        x = weight * 1
        y = _square(saved).apply(x)
        x.mul_(5)
        if saved:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.backward()
        else:
            y.backward()
            assert weight.grad.item() == 10  # the right gradient is 2


@pytest.mark.parametrize("saved", [False, True])
def test_an_output_on_ctx_waits_for_the_garbage_collector(saved: bool) -> None:
    gc.disable()
    try:
        y = _square(saved).apply(torch.ones(1, requires_grad=True))
        watched = weakref.ref(y)
        del y
        assert (watched() is None) is saved
    finally:
        gc.enable()
        gc.collect()
