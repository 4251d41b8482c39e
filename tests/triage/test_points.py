"""Pasted code is answered at the place that is asked about, in its own names; a mistake by its shape, and nothing like it by accident."""

from __future__ import annotations

import ast

import pytest
import torch

from fallline.triage.answer import answer
from fallline.triage.claim import Action, points
from fallline.triage.evidence import gather
from fallline.triage.pattern import find
from fallline.triage.silent import DECIDES, silent


def asked(question: str) -> tuple[list[str], str]:
    reply = answer(question, gather(question)).reply
    return reply.claims, reply.answer


def fenced(code: str, says: str) -> str:
    return f"{says}\n```\n{code}\n```"


SEEN = [
    ("target-of-a-loss", "Why is there a detach in this loss?", "loss = criterion(student(x), teacher_out.detach())"),
    ("detached-fakes", "why do they use detach here?", "d_loss = bce(disc(fake.detach()), zeros)"),
    ("detached-rollout", "I do not understand the detach", "old_logp = dist.log_prob(actions).detach()"),
    ("detached-output-of-a-network", "Is detach needed?", "real = self.vgg(target).detach()"),
    ("detached-somewhere", "what is detach for", "scale = x / x.abs().max().detach()"),
    ("exp-of-itself", "the importance ratio is always one, so nothing is learned?", "r = torch.exp(logp - logp.detach()) * adv"),
    ("data-of-a-tensor", "why do they write .data and not detach", "p.data = p.data - lr * p.grad"),
    ("graph-kept", "why retain_graph=True?", "loss.backward(retain_graph=True)"),
    ("over-the-first-dimension", "is the softmax dim right?", "p = torch.softmax(scores, dim=0)"),
    ("over-the-first-dimension", "is the softmax dim right?", "p = scores.softmax(0)"),
    ("largest-of-two-negatives", "why max and not min", "a = -adv * ratio\nb = -adv * clipped\nloss = torch.max(a, b).mean()"),
    ("every-micro-batch-another-weight", "should I divide like this when accumulating?", "loss = loss / (step + 1)"),
    ("mean-over-the-window", "why do we divide when accumulating", "loss = loss / accum_steps"),
    ("compared-with-one-label", "accuracy is far too low", "correct += (predicted == labels[0]).sum()"),
    ("compared-as-a-table", "accuracy above 1", "_, p = torch.max(out, 1)\nright += torch.sum(p == y.unsqueeze(1))"),
    ("sum-by-batches", "the printed loss is huge", "total += loss.item() * x.size(0)\nprint(total / len(loader))"),
    ("mean-by-examples", "the printed loss is tiny", "total_loss += loss.item()\nprint(total_loss / len(train_dataset))"),
    ("right-ones-by-batches", "accuracy 31.0?", "hits += (p == y).sum().item()\nprint(hits / len(test_loader))"),
    ("nothing-is-loaded", "my model does not load", "state = torch.load('m.pt')\nmodel.state_dict(state)"),
    ("dropout-that-never-stops", "predictions change from call to call in eval mode", "x = F.dropout(x, 0.5)"),
    ("divergence-of-what-is-no-distribution", "kl is negative", "kl = F.kl_div(a.log(), b, reduction='batchmean')"),
    ("exponential-of-logits", "probabilities do not add up to one", "ps = torch.exp(output)"),
    ("mean-of-the-selected", "is this normalization right?", "loss = (tok * mask).sum() / mask.sum()"),
    ("no-way-through-numbers", "nothing is trained", "def cost(a, b):\n    return torch.tensor(np.abs(a - b).mean(), requires_grad=True)"),
    ("moves-no-axis", "can I use view to swap the axes instead of permute?", "x = x.view(n, c, t)"),
    ("no-future-after-the-end", "why the done in the target?", "target = r + gamma * q_next * (1 - done)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "says", "code"), SEEN)
def test_what_a_line_does_is_said_in_its_own_names(name: str, says: str, code: str) -> None:
    claims, text = asked(fenced(code, says))
    assert claims == [name] and "{" not in text and "the value`" not in text


def test_code_in_one_line_of_prose_is_read_too() -> None:
    claims, text = asked(
        "detach() in the encoder\nloss = weight * mse_loss(code_12, code_1.detach())\nwhy is it used here?"
    )
    assert claims == ["target-of-a-loss"] and "`code_12`" in text
    claims, text = asked("I am confused by `old_values = torch.cat(values).detach()`. Why detach?")
    assert claims == ["detached-rollout"]


NOT_SEEN = [
    ("the accuracy is low", "correct += (predicted == labels).sum()\nprint(labels[0])"),
    ("predictions differ", "x = F.dropout(x, 0.5, training=self.training)"),
    ("the loss looks odd", "total += loss.item() * x.size(0)\nprint(total / len(loader.dataset))"),
    ("the loss looks odd", "total += loss.item()\nprint(total / len(loader))"),
    ("kl", "kl = F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction='batchmean')"),
    ("cannot load", "model.load_state_dict(torch.load('m.pt'))\nstate = model.state_dict()"),
]


@pytest.mark.parametrize(("says", "code"), NOT_SEEN)
def test_right_code_has_no_point_of_a_mistake(says: str, code: str) -> None:
    mistakes = {p.id for p in points() if p.asked is None}
    assert not mistakes & set(asked(fenced(code, says))[0])


def test_an_error_message_decides_before_a_line_that_is_only_named() -> None:
    code = "out = model(x.detach())"
    says = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"
    assert asked(fenced(code, says))[0][0] not in {p.id for p in points()}


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ("Are gradients accumulated in each step?", "accumulate = max(round(64 / batch), 1)"),
        (
            "My network outputs the mean.\nloader = torch.utils.data.DataLoader(images)\nWhy?",
            "loader = torch.utils.data.DataLoader(images)",
        ),
    ],
)
def test_a_line_that_nobody_asks_about_does_not_answer(says: str, code: str) -> None:
    assert not {p.id for p in points()} & set(asked(fenced(code, says))[0])


def test_the_plan_of_a_query_is_no_log_of_a_loss() -> None:
    plan = "->  Seq Scan on trades  (cost=0.00..0.00 rows=1 width=266)\n"
    reply = answer(f"my query uses no index\n```\n{plan * 4}```").reply
    assert not reply.ours


def test_patterns_know_calls_by_their_last_name() -> None:
    tree = ast.parse("a = F.softmax(x, dim=0)\nb = y.softmax(dim=0)\nc = z.softmax(dim=1)")
    found = [ast.unparse(bound["A"]) for _, bound in find("A.softmax(dim=0)", tree)]
    assert sorted(found) == ["x", "y"]
    twice = ast.parse("torch.exp(a - b.detach()) + torch.exp(a - a.detach())")
    assert len(list(find("torch.exp(A - A.detach())", twice))) == 1


@pytest.mark.parametrize("point", list(points()), ids=lambda p: p.id)
def test_every_point_can_be_parsed(point: object) -> None:
    from fallline.triage.claim import Claim

    assert isinstance(point, Claim)
    for pattern in (*point.sees, *point.also, *point.without):
        list(find(pattern, ast.parse("x")))


@pytest.mark.parametrize("action", [action for _, action in DECIDES], ids=lambda a: a.do[:30])
def test_what_decides_runs(action: Action) -> None:
    model = torch.nn.Linear(3, 2)
    outputs, targets = model(torch.randn(5, 3)), torch.randn(5, 2)
    names = {"torch": torch, "model": model, "outputs": outputs, "targets": targets}
    names["loss"] = (outputs - targets).square().mean()
    exec(action.code, names)
    assert "backward" not in action.code or model.weight.grad is not None


def test_an_excerpt_without_findings_says_what_is_not_in_it() -> None:
    reply = silent("why is the output stuck?", "out = my_network(x)\nloss = my_loss(out, x)\n")
    assert "`my_network`, `my_loss`" in reply.answer and "2 lines" in reply.answer
    assert "named_parameters" in reply.actions[0].code and reply.clarify
