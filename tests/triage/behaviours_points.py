"""What the texts about places in pasted code (`points/`) rest on."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F


def _pair() -> tuple[nn.Linear, nn.Linear, torch.Tensor]:
    return nn.Linear(3, 2), nn.Linear(3, 2), torch.randn(5, 3)


def exp_of_a_difference_with_itself() -> None:
    logp = torch.randn(6, requires_grad=True)
    advantages = torch.randn(6)
    advantages -= advantages.mean()
    ratio = torch.exp(logp - logp.detach())
    loss = -(ratio * advantages).mean()
    loss.backward()
    assert torch.equal(ratio, torch.ones(6)) and loss.abs() < 1e-6
    assert logp.grad is not None and torch.allclose(logp.grad, -advantages / 6)


def an_attached_rollout_cancels() -> None:
    policy, states = nn.Linear(3, 2), torch.randn(5, 3)
    old = policy(states).log_softmax(-1)
    (torch.exp(policy(states).log_softmax(-1) - old)).sum().backward()
    assert policy.weight.grad is not None and policy.weight.grad.abs().max() < 1e-6
    try:
        (torch.exp(policy(states).log_softmax(-1) - old)).sum().backward()
    except RuntimeError as error:
        assert "second time" in str(error)
    else:
        raise AssertionError


def a_frozen_network_passes_gradients_on() -> None:
    own, frozen, x = nn.Linear(3, 3), nn.Linear(3, 2).requires_grad_(False), torch.randn(5, 3)
    F.mse_loss(frozen(own(x)), frozen(x)).backward()
    kept = own.weight.grad
    own.weight.grad = None
    F.mse_loss(frozen(own(x)), frozen(x).detach()).backward()
    assert kept is not None and own.weight.grad is not None
    assert torch.equal(kept, own.weight.grad) and frozen.weight.grad is None


def detach_makes_a_target() -> None:
    a, b, x = _pair()
    F.mse_loss(a(x), b(x).detach()).backward()
    assert a.weight.grad is not None and b.weight.grad is None
    F.mse_loss(a(x), b(x)).backward()
    assert b.weight.grad is not None


def detached_fakes() -> None:
    grads = []
    for detached in (True, False):
        torch.manual_seed(0)
        g, d = nn.Linear(2, 3), nn.Linear(3, 1)
        fake = g(torch.randn(4, 2))
        d(fake.detach() if detached else fake).mean().backward()
        assert d.weight.grad is not None and (g.weight.grad is None) is detached
        grads.append(d.weight.grad)
    assert torch.equal(*grads)


def data_hides_changes() -> None:
    w = torch.ones(2, requires_grad=True)
    y = w * w
    w.data.mul_(10)  # no error, and the gradient is that of the new value
    y.sum().backward()
    assert w.grad is not None and torch.equal(w.grad, torch.full((2,), 20.0))


def item_has_no_graph() -> None:
    assert not hasattr(torch.ones((), requires_grad=True).item(), "grad_fn")


def no_grad_records_nothing() -> None:
    layer = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
    with torch.no_grad():
        out = layer(torch.ones(50, 2))
    assert out.grad_fn is None and (out == 0).any()  # dropout is still on


def retain_graph_is_for_a_shared_part() -> None:
    a, _, x = _pair()
    shared = a(x)
    (shared.sum() + shared.square().sum()).backward()
    once = a.weight.grad
    a.weight.grad = None
    shared = a(x)
    shared.sum().backward(retain_graph=True)
    shared.square().sum().backward()
    assert once is not None and a.weight.grad is not None
    assert torch.allclose(once, a.weight.grad)


def a_penalty_needs_create_graph() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(3, 2, requires_grad=True)
    (plain,) = torch.autograd.grad(net(x).sum(), x)
    (kept,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    assert not plain.requires_grad and kept.requires_grad


def a_new_tensor_has_no_history() -> None:
    net = nn.Linear(2, 1)
    torch.tensor(net(torch.ones(1, 2)).item(), requires_grad=True).backward()
    assert net.weight.grad is None


def a_float_in_a_sum_trains_nothing() -> None:
    a, b, x = _pair()
    sum([a(x).mean(), b(x).mean().item()]).backward()  # type: ignore[union-attr]
    assert a.weight.grad is not None and b.weight.grad is None


def choices_have_no_gradient() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    assert not x.argmax(1).requires_grad
    (x.round().sum() + x.sign().sum()).backward()
    assert x.grad is not None and not x.grad.any()


def clamp_stops_gradients_outside() -> None:
    x = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
    x.clamp(-1, 1).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 1, 0]


def freezing_leaves_the_statistics() -> None:
    bn, x = nn.BatchNorm1d(2), torch.randn(8, 2) + 3
    for p in bn.parameters():
        p.requires_grad = False
    before = bn.running_mean.clone()  # type: ignore[union-attr]
    bn(x)
    moved = bn.running_mean.clone()  # type: ignore[union-attr]
    assert not torch.equal(before, moved)
    bn.eval()(x)
    assert torch.equal(bn.running_mean, moved)  # type: ignore[arg-type]
    live = nn.BatchNorm1d(2).eval()
    live(x).sum().backward()
    assert live.weight.grad is not None
    assert bn.train().training and not bn.weight.requires_grad


def an_ema_remembers() -> None:
    value, share = 0.0, 0.9
    for _ in range(10):
        value = share * value + (1 - share) * 1.0
    assert abs(value - (1 - 0.9**10)) < 1e-9


def deepcopy_is_independent() -> None:
    a = nn.Linear(2, 2)
    b, state = copy.deepcopy(a), a.state_dict()
    with torch.no_grad():
        a.weight.add_(1)
    assert not torch.equal(a.weight, b.weight) and torch.equal(state["weight"], a.weight)


def a_running_divisor_weights_unevenly() -> None:
    w = torch.zeros((), requires_grad=True)
    for step in range(4):
        (w / (step + 1)).backward()
    assert w.grad is not None and abs(w.grad.item() - 2.0833) < 1e-3


def max_of_negatives_is_the_ppo_objective() -> None:
    ratio, advantage = torch.rand(50) * 2, torch.randn(50)
    clipped = ratio.clamp(0.8, 1.2)
    loss = torch.max(-advantage * ratio, -advantage * clipped)
    assert torch.equal(loss, -torch.min(advantage * ratio, advantage * clipped))


def softmax_over_the_batch() -> None:
    logits = torch.randn(4, 3)
    down = logits.softmax(dim=0)
    assert torch.allclose(down.sum(0), torch.ones(3))
    assert not torch.allclose(down[0], logits[:2].softmax(dim=0)[0])
    assert torch.allclose(logits.softmax(1)[0], logits[:2].softmax(1)[0])


def cross_entropy_over_a_vocabulary() -> None:
    logits, labels = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))
    try:
        nn.BCELoss()(logits.softmax(-1), labels.float())
    except ValueError as error:
        assert "target size" in str(error)
    else:
        raise AssertionError
    flat = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert torch.isclose(flat, F.cross_entropy(logits.transpose(1, 2), labels))


def kl_div_wants_distributions() -> None:
    small, large = torch.full((1, 4), 2.0), torch.full((1, 4), 3.0)
    assert F.kl_div(large.log(), small, reduction="batchmean") < 0
    p, q = torch.randn(3, 5), torch.randn(3, 5)
    assert F.kl_div(p.log_softmax(1), q.softmax(1), reduction="batchmean") >= 0
    assert F.kl_div(p.softmax(1), q.softmax(1), reduction="batchmean") < 0


def exp_of_logits_is_no_distribution() -> None:
    logits = torch.randn(3, 5)
    assert not torch.allclose(logits.exp().sum(1), torch.ones(3))
    assert torch.equal(logits.exp().argsort(1), logits.softmax(1).argsort(1))


def two_ways_to_average_over_tokens() -> None:
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0]])
    each = torch.tensor([[1.0], [-1.0]]) * mask  # advantages of a group add up to 0
    assert ((each * mask).sum(1) / mask.sum(1)).mean() == 0
    assert (each * mask).sum() / mask.sum() == 0.6
    even = torch.ones(2, 4)
    x = torch.randn(2, 4)
    assert torch.isclose(((x * even).sum(1) / 4).mean(), (x * even).sum() / even.sum())


def standardised_values() -> None:
    x = torch.tensor([0.0, 1.0, 1.0, 5.0])
    z = (x - x.mean()) / (x.std() + 1e-8)
    assert z.sum().abs() < 1e-5 and torch.equal(z.argsort(), x.argsort())
    one = torch.ones(1)
    assert one.std().isnan() and ((one.expand(3) - 1) / (one.expand(3).std() + 1e-8)).sum() == 0


def position_t_predicts_the_next() -> None:
    labels = torch.arange(5)[None]
    logits = F.one_hot(labels + 1, 7).float() * 100  # position t says t + 1
    right = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    wrong = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert right < 1e-6 < wrong


def ignored_labels_are_not_counted() -> None:
    logits, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, -100, -100])
    loss = F.cross_entropy(logits, labels)
    assert torch.isclose(loss, F.cross_entropy(logits[:2], labels[:2]))
    loss.backward()
    assert logits.grad is not None and not logits.grad[2:].any()
    assert F.cross_entropy(logits, torch.full((4,), -100)).isnan()


def attention_scores_need_their_scale() -> None:
    q, k = torch.randn(200, 64), torch.randn(200, 64)
    raw = q @ k.T
    assert 7 < raw.std() < 9 and raw.softmax(-1).max(-1).values.mean() > 0.7
    assert (raw / 8).softmax(-1).max(-1).values.mean() < 0.2
    out = F.scaled_dot_product_attention(q[None], k[None], k[None])[0]
    assert torch.allclose(out, (raw / 8).softmax(-1) @ k, atol=1e-4)


def masked_scores() -> None:
    scores, everything = torch.randn(2, 3), torch.tensor([[True, False, False], [True, True, True]])
    weights = scores.masked_fill(everything, float("-inf")).softmax(-1)
    assert weights[0, 0] == 0 and weights[1].isnan().all()
    assert torch.allclose(
        scores.masked_fill(everything, -1e9).softmax(-1)[1], torch.full((3,), 1 / 3)
    )
    try:
        scores.half().masked_fill(everything, -1e9)
    except RuntimeError as error:
        assert "overflow" in str(error)
    else:
        raise AssertionError


def a_terminal_state_has_no_future() -> None:
    reward, done, ahead = (
        torch.tensor([1.0, 1.0]),
        torch.tensor([0.0, 1.0]),
        torch.tensor([5.0, 5.0]),
    )
    assert (reward + 0.9 * ahead * (1 - done)).tolist() == [5.5, 1.0]


def compared_with_the_first_label() -> None:
    labels = torch.tensor([0, 1, 2, 3])
    assert (labels == labels[0]).sum() == 1 and (labels == labels).sum() == 4


def a_comparison_of_row_and_column() -> None:
    outputs, labels = torch.randn(4, 1), torch.zeros(4, dtype=torch.long)
    _, predicted = torch.max(outputs, 1)
    assert (predicted == labels.unsqueeze(1)).shape == (4, 4)
    assert (predicted == labels.unsqueeze(1)).sum() == 16 and not predicted.any()


def examples_are_not_batches() -> None:
    sizes = [4, 4, 2]
    assert sum(sizes) / len(sizes) > 1  # all of them right, divided by the batches
    assert abs(sum(0.5 * n for n in sizes) / sum(sizes) - 0.5) < 1e-9
    assert sum(0.5 for _ in sizes) / len(sizes) == 0.5


def state_dict_with_an_argument() -> None:
    net, saved = nn.Linear(2, 2), {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}
    try:
        net.state_dict(saved)  # type: ignore[call-overload]
    except AttributeError as error:
        assert "_metadata" in str(error)
    assert net.weight.any()  # nothing was loaded


def functional_dropout_is_always_on() -> None:
    x = torch.ones(200)
    assert (F.dropout(x) == 0).any() and torch.equal(F.dropout(x, training=False), x)
    assert torch.equal(nn.Dropout(0.5).eval()(x), x)


def squeeze_takes_the_batch_too() -> None:
    assert torch.ones(1, 1).squeeze().shape == () and torch.ones(1, 1).squeeze(1).shape == (1,)


def view_moves_no_axis() -> None:
    x = torch.arange(6).view(1, 2, 3)
    assert x.view(1, 3, 2).tolist() != x.permute(0, 2, 1).tolist()
    assert torch.equal(x.permute(0, 2, 1).contiguous().view(-1), x.permute(0, 2, 1).reshape(-1))


def clone_is_recorded() -> None:
    x = torch.ones(2, requires_grad=True)
    x.clone().mul_(2).sum().backward()
    assert x.grad is not None and not x.detach().clone().requires_grad


def expand_shares_memory() -> None:
    x = torch.ones(1, 2, requires_grad=True)
    wide = x.expand(3, 2)
    assert wide.data_ptr() == x.data_ptr() != x.repeat(3, 1).data_ptr()
    wide.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[3, 3]]


def buffers_move_and_are_saved() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(1))
            self.register_buffer("unsaved", torch.ones(1), persistent=False)
            self.plain = torch.ones(1, requires_grad=True)
            self.trained = nn.Parameter(torch.ones(1))

    net = Net().to(torch.float64)
    assert set(net.state_dict()) == {"kept", "trained"}
    assert [n for n, _ in net.named_parameters()] == ["trained"]
    assert net.kept.dtype == torch.float64 != net.plain.dtype
