"""The fixes of the gradient rules: what they write, and where they keep their hands off."""

from __future__ import annotations

import pytest

from fallline.finding import Finding
from fallline.location import Location
from fallline.rules import rule_by_code
from fallline.syntax import Project, Source
from fallline.syntax.edits import apply

LOOP = """\
for i, (x, y) in enumerate(loader):
{}
"""


def fixed(code: str, body: str, **related: str) -> str | None:
    """The body of a loop after the fix; the finding is at the line that ends with `# <`, related lines hold the given text."""
    rule = rule_by_code(code)
    assert rule is not None
    text = LOOP.format("\n".join("    " + line for line in body.strip("\n").split("\n")))
    lines = text.split("\n")
    at = next(n for n, line in enumerate(lines, 1) if line.endswith("# <"))
    text = text.replace("  # <", "")
    module = Project().add(Source("train.py", text))
    found = Finding(code, rule.name, rule.severity, "", Location("train.py", at))
    for name, piece in related.items():
        found.related[name] = Location(
            "train.py", next(n for n, line in enumerate(lines, 1) if piece in line)
        )
    fix = rule.fix(found, module)
    if fix is None:
        return None
    done = apply(text, fix.edits)
    assert done is not None
    return "\n".join(line.removeprefix("    ") for line in done.rstrip("\n").split("\n")[1:])


def test_the_clip_moves_before_the_step() -> None:
    assert (
        fixed(
            "FL101",
            "loss.backward()\nopt.step()\nopt.zero_grad()\nclip_(model.parameters(), 1.0)  # <",
            step="opt.step",
        )
        == "loss.backward()\nclip_(model.parameters(), 1.0)\nopt.step()\nopt.zero_grad()"
    )


def test_the_clip_stays_where_its_names_are_made() -> None:
    body = "opt.step()\nlimit = next_limit()\nclip_(model.parameters(), limit)  # <"
    assert fixed("FL101", body, step="opt.step") is None


@pytest.mark.parametrize(
    "body",
    [
        "opt.step(); clip_(model.parameters(), 1.0)  # <",
        "for o in optimizers:\n    opt.step()\nclip_(model.parameters(), 1.0)  # <",
    ],
)
def test_a_clip_in_another_block_or_on_the_same_line_stays(body: str) -> None:
    assert fixed("FL101", body, step="opt.step") is None


def test_the_early_clip_moves_to_its_step() -> None:
    assert (
        fixed(
            "FL102",
            "opt.zero_grad()\nnorm = clip_(model.parameters(), 1.0)  # <\nloss.backward()\nscaler.unscale_(opt)\nscaler.step(opt)",
            step="scaler.step",
        )
        == "opt.zero_grad()\nloss.backward()\nscaler.unscale_(opt)\nnorm = clip_(model.parameters(), 1.0)\nscaler.step(opt)"
    )


def test_the_partial_clip_moves_into_the_boundary() -> None:
    assert (
        fixed(
            "FL103",
            "loss.backward()\nclip_(model.parameters(), 1.0)  # <\nif (i + 1) % 4 == 0:\n    opt.step()\n    opt.zero_grad()",
            step="opt.step",
        )
        == "loss.backward()\nif (i + 1) % 4 == 0:\n    clip_(model.parameters(), 1.0)\n    opt.step()\n    opt.zero_grad()"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss.backward()", "(loss / k).backward()"),
        ("scaler.scale(loss).backward()", "scaler.scale(loss / k).backward()"),
        ("loss_fn(model(x), y).backward()", "(loss_fn(model(x), y) / k).backward()"),
        ("scaler.scale(a + b).backward()", "scaler.scale((a + b) / k).backward()"),
    ],
)
def test_the_loss_is_divided_by_the_boundary_s_count(before: str, after: str) -> None:
    rest = "\nif (i + 1) % k == 0:\n    opt.step()"
    assert fixed("FL104", before + "  # <" + rest, step="opt.step", boundary="% k") == after + rest


def test_the_loss_is_divided_by_the_inner_loop_s_count() -> None:
    body = "for micro in range(config.micro):\n    loss.backward()  # <\nopt.step()"
    assert fixed("FL104", body, step="opt.step") == (
        "for micro in range(config.micro):\n    (loss / config.micro).backward()\nopt.step()"
    )


def test_no_count_no_fix() -> None:
    assert (
        fixed("FL104", "loss.backward()  # <\nif full(i):\n    opt.step()", step="opt.step") is None
    )


def test_clearing_moves_behind_the_step() -> None:
    assert (
        fixed(
            "FL105",
            "opt.zero_grad()  # <\nloss.backward()\nif (i + 1) % 4 == 0:\n    opt.step()",
            step="opt.step",
        )
        == "loss.backward()\nif (i + 1) % 4 == 0:\n    opt.step()\n    opt.zero_grad()"
    )
    assert fixed("FL105", "loss.backward()\nopt.zero_grad()  # <\nopt.step()", step="opt.step") == (
        "loss.backward()\nopt.step()\nopt.zero_grad()"
    )


def test_clearing_stays_where_the_step_comes_before_its_backward() -> None:
    """`step(); zero_grad(); loss.backward()` would change the parameters inside the graph: torch raises."""
    body = "opt.zero_grad()  # <\nopt.step()\nloss.backward()"
    assert fixed("FL105", body, step="opt.step", backward="loss.backward") is None


def test_clearing_outside_the_boundary_moves_into_it() -> None:
    body = "loss.backward()\nif (i + 1) % 4 == 0:\n    opt.step()\nopt.zero_grad()  # <"
    assert fixed("FL105", body, step="opt.step") == (
        "loss.backward()\nif (i + 1) % 4 == 0:\n    opt.step()\n    opt.zero_grad()"
    )


@pytest.mark.parametrize(
    "steps",
    [
        "if amp:\n    scaler.step(opt)\nelse:\n    opt.step()",
        "if amp:\n    scaler.step(opt)\nif not amp:\n    opt.step()",
    ],
)
def test_nothing_moves_into_one_of_two_branches(steps: str) -> None:
    assert fixed("FL101", steps + "\nclip_(model.parameters(), 1.0)  # <", step="opt.step") is None
    assert (
        fixed(
            "FL102",
            "clip_(model.parameters(), 1.0)  # <\nloss.backward()\n" + steps,
            step="opt.step",
        )
        is None
    )


def test_clearing_is_added_after_the_step() -> None:
    assert fixed("FL106", "loss.backward()  # <\nself.opt.step()", step="opt.step") == (
        "loss.backward()\nself.opt.step()\nself.opt.zero_grad()"
    )
    assert fixed(
        "FL106", "loss.backward()  # <\nscaler.step(opt)\nscaler.update()", step="scaler.step"
    ) == ("loss.backward()\nscaler.step(opt)\nopt.zero_grad()\nscaler.update()")


def test_the_scheduler_moves_behind_the_loop_that_steps() -> None:
    assert fixed(
        "FL109",
        "scheduler.step()  # <\nfor x in data:\n    loss.backward()\n    opt.step()\nsave()",
        step="opt.step",
    ) == ("for x in data:\n    loss.backward()\n    opt.step()\nscheduler.step()\nsave()")
    assert fixed(
        "FL109", "loss.backward()\nscheduler.step()  # <\nopt.step()", step="opt.step"
    ) == ("loss.backward()\nopt.step()\nscheduler.step()")


def test_the_division_moves_to_the_step() -> None:
    assert (
        fixed(
            "FL110",
            "loss.backward()\nfor p in model.parameters():\n    p.grad /= 4  # <\nif (i + 1) % 4 == 0:\n    clip_(p, 1.0)\n    opt.step()",
            step="opt.step",
        )
        == "loss.backward()\nif (i + 1) % 4 == 0:\n    for p in model.parameters():\n        p.grad /= 4\n    clip_(p, 1.0)\n    opt.step()"
    )
