"""The memory rules: traces by hand, look-alikes in source, and what their fixes write."""

from __future__ import annotations

import pytest

from fallline.rules import rule_by_code
from fallline.syntax import Module, Project, Source
from fallline.syntax.edits import apply
from fallline.verdict import judge
from fallline.verdict.reading import read_text
from traces import codes, line_of, trace


def found(code: str, text: str, **how) -> set[str]:
    rule = rule_by_code(code)
    assert rule is not None
    return codes(rule, trace(text, **how))


def read(text: str) -> Module:
    return Project().add(Source("train.py", text))


def reported(code: str, text: str) -> list[int]:
    rule = rule_by_code(code)
    assert rule is not None
    return [finding.at.line for finding in rule.check_syntax(read(text))]


def fixed_at(code: str, text: str, line: int) -> str | None:
    """The text after the fix of a finding at this line, made without the reader."""
    from fallline.location import Location

    rule = rule_by_code(code)
    assert rule is not None
    fix = rule.fix(rule.finding(Location("train.py", line), "found"), read(text))
    return apply(text, fix.edits) if fix is not None else None


STEP = "D Z F(used;model=m) B S"
EVAL = "F2(!training;!used;model=m)"


@pytest.mark.parametrize(
    ("code", "text", "tokens"),
    [
        ("FL401", f"{STEP} K(how=append;!reaches_backward) " * 2, {"K"}),
        ("FL401", f"{STEP} K(how=add;!reaches_backward) " * 2, {"K"}),
        ("FL402", f"{STEP} M(mode=eval;model=m) {EVAL}", {"F2"}),
        ("FL402", f"M(mode=eval;model=m) [{EVAL}]*2", {"F2"}),
        ("FL403", "D Z F B(retain_graph;!second) S " * 2, {"B"}),
        ("FL406", f"checkpoint(batchnorm) {STEP}", {"checkpoint"}),
    ],
)
def test_reports(code: str, text: str, tokens: set[str]) -> None:
    assert found(code, text) == tokens


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("FL401", f"{STEP} K(how=append) " * 2),  # not known whether a backward follows
        ("FL401", "D F K(how=append;reaches_backward) D F K(how=append;reaches_backward) B S"),
        ("FL401", f"{STEP} K(how=assign;!reaches_backward) " * 2),  # one graph, overwritten
        ("FL402", f"{STEP} M(mode=eval;model=m) F2(!training;!used;!grad;model=m)"),
        ("FL402", f"{STEP} M(mode=eval;model=m) F2(!training;used;model=m)"),  # an attack
        ("FL402", f"{STEP} M(mode=eval;model=m) F2(!training;model=m)"),  # not known
        ("FL402", f"{STEP} F2(!used;model=m)"),  # not an evaluation: a GAN's detached fake
        ("FL402", "D Z F(used;model=m) F2(!training;!used;model=teacher) B S " * 2),
        ("FL402", f"M(mode=eval;model=m) {EVAL}"),  # one forward pass, nothing trained
        ("FL403", "D Z F B(retain_graph;second) B2 S " * 2),
        ("FL403", "D Z F B(retain_graph) S " * 2),  # not known
        ("FL403", "Z F B(retain_graph;!second) S"),  # once
        ("FL403", "D Z F B(retain_graph;!second) O S " * 2),  # who knows what that does
        ("FL403", "D Z F B(retain_graph;create_graph;!second) S " * 2),
        ("FL403", "D Z F B(retain_graph;!second) B2 S " * 2),  # may share the graph
        ("FL406", f"checkpoint {STEP}"),
        ("FL406", f"checkpoint(!batchnorm) {STEP}"),
    ],
)
def test_silent(code: str, text: str) -> None:
    assert found(code, text) == set()


@pytest.mark.parametrize(
    ("code", "text", "tokens"),
    [
        ("FL401", "D F K(how=add;reaches_backward) B S", {"K"}),
        ("FL402", "M(mode=eval;model=m) F2(!training;!grad;model=m) F3(model=m)", {"F2"}),
        ("FL403", "D F B(retain_graph;second) B2(retain_graph;!second) S", {"B"}),
    ],
)
def test_what_one_setting_needs_is_not_denounced_in_another(
    code: str, text: str, tokens: set[str]
) -> None:
    rule, made = rule_by_code(code), trace(text)
    assert rule is not None
    assert {at.line for at in rule.refutes(made)} == {line_of(made, token) for token in tokens}


def test_a_feature_extractor_is_no_evaluation() -> None:
    """Its features of the fake reach the generator's backward, those of the real image are detached."""
    step = "D Z F(used;model=g) F2(!training;used;model=vgg) F3(!training;!used;model=vgg) B S"
    held = {"opt": {"parameters": frozenset({"g"})}}
    rule = rule_by_code("FL402")
    assert rule is not None
    assert codes(rule, trace(f"{step} " * 2, held)) == set()
    own = step.replace("F3(!training;!used;model=vgg)", "F3(!training;!used;model=g)")
    assert codes(rule, trace(f"{own} " * 2, held)) == {"F3"}


def test_an_attack_looks_at_its_result_too() -> None:
    attack = "F2(!training;used;model=m;function=pgd) B2 F3(!training;!used;model=m;function=pgd)"
    assert found("FL402", f"{STEP} M(mode=eval;model=m) {attack}") == set()


def test_one_evaluation_is_one_finding() -> None:
    several = "F2(!training;!used;model=m) F3(!training;!used;model=m)"
    assert found("FL402", f"{STEP} M(mode=eval;model=m) {several}") == {"F2"}
    elsewhere = "F2(!training;!used;model=m;function=a) F3(!training;!used;model=m;function=b)"
    assert found("FL402", f"{STEP} M(mode=eval;model=m) {elsewhere}") == {"F2", "F3"}


def test_a_kept_graph_explains_the_evaluation_that_builds_it() -> None:
    made = trace(f"{STEP} M(mode=eval;model=m) {EVAL} K(how=append;!reaches_backward)")
    rules = [r for c in ("FL401", "FL402") if (r := rule_by_code(c)) is not None]
    assert [finding.code for finding in judge(made, rules)] == ["FL401"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("losses.append(loss)", "losses.append(loss.detach())"),
        ("losses.append(loss_fn(x, y))", "losses.append(loss_fn(x, y).detach())"),
        ("total += loss * n", "total += (loss * n).detach()"),
        ("total = total + loss", "total = total + loss.detach()"),
        ("history[step] = out.loss", "history[step] = out.loss.detach()"),
        ("losses.append((step, loss))", None),
        ("losses.append({'loss': loss})", None),
    ],
)
def test_fix_of_a_kept_graph(before: str, after: str | None) -> None:
    text = f"import torch\n{before}  # kept\n"
    assert fixed_at("FL401", text, 2) == (after and f"import torch\n{after}  # kept\n")


def test_fix_decorates_an_evaluation_function() -> None:
    text = (
        "import torch\n\n\ndef validate(model, x):\n    model.eval()\n    return model(x).item()\n"
    )
    assert fixed_at("FL402", text, 6) == text.replace("def val", "@torch.no_grad()\ndef val")


def test_fix_wraps_an_evaluation_loop_and_leaves_training_alone() -> None:
    text = """\
import torch

for epoch in range(3):
    for x in train:
        model(x).mean().backward()
    model.eval()
    for x in val:
        # how good is it
        total += model(x).mean().item()
"""
    assert fixed_at("FL402", text, 9) == text.replace(
        """\
    for x in val:
        # how good is it
        total += model(x).mean().item()
""",
        """\
    with torch.no_grad():
        for x in val:
            # how good is it
            total += model(x).mean().item()
""",
    )


def test_no_fix_where_one_call_serves_training_and_evaluation() -> None:
    text = """\
import torch

def run(model, loader, optimizer):
    for x in loader:
        loss = model(x).mean()
        if optimizer is not None:
            loss.backward()
            optimizer.step()
"""
    assert fixed_at("FL402", text, 5) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss.backward(retain_graph=True)", "loss.backward()"),
        ("loss.backward(gradient, retain_graph=True)", "loss.backward(gradient)"),
        ("loss.backward(retain_graph=True, inputs=w)", "loss.backward(inputs=w)"),
    ],
)
def test_fix_of_retain_graph(before: str, after: str) -> None:
    assert fixed_at("FL403", before + "\n", 1) == after + "\n"


LOOP = """\
import torch
for {target} in {over}:
    {body}
    torch.cuda.empty_cache()
"""


@pytest.mark.parametrize(
    ("target", "over", "body", "lines"),
    [
        ("x", "loader", "loss(x).backward()", [4]),
        ("x", "tqdm(train_loader)", "evaluate(x)", [4]),
        ("epoch", "range(9)", "train(epoch)", []),
        ("name", "names", "run(name)", []),
        ("epoch", "range(9)", "for x in loader: loss(x).backward()", []),
    ],
)
def test_empty_cache(target: str, over: str, body: str, lines: list[int]) -> None:
    assert reported("FL404", LOOP.format(target=target, over=over, body=body)) == lines


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("checkpoint(f, x)", [2]),
        ("checkpoint(f, *inputs)", [2]),
        ("checkpoint(f, x, **options)", []),
        ("checkpoint(f, x, use_reentrant=flag)", []),
        ("partial(checkpoint, f)", []),
    ],
)
def test_checkpoint_reentrant(call: str, lines: list[int]) -> None:
    assert reported("FL405", f"from torch.utils.checkpoint import checkpoint\n{call}\n") == lines


UNIT_TEST = """\
import torch
from torch import nn


def test_outputs_change():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.eval()
    before = model(torch.ones(1, 4))
    model.train()
    model(torch.ones(1, 4)).mean().backward()
    optimizer.step()
    model.eval()
    assert not torch.allclose(before, model(torch.ones(1, 4)))
"""


def test_a_unit_test_is_no_evaluation() -> None:

    def told(path: str) -> bool:
        return "FL402" in {f.code for f in read_text(UNIT_TEST, path)}

    assert not told("tests/test_model.py")
    assert not told("tests/common.py")
    assert told("train.py")


def test_two_models_in_one_evaluation_are_one_finding() -> None:
    text = """\
import torch


def validate(loader, encoder, decoder):
    decoder.eval()
    if encoder:
        encoder.eval()
    for images, captions in loader:
        if encoder:
            images = encoder(images)
        scores = decoder(images)
        print(scores.argmax(-1) == captions)


def train(loader, encoder, decoder, criterion):
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for images, captions in loader:
        optimizer.zero_grad()
        criterion(decoder(encoder(images)), captions).backward()
        optimizer.step()
    validate(loader, encoder, decoder)
"""
    assert len([f for f in read_text(text) if f.code == "FL402"]) == 1
