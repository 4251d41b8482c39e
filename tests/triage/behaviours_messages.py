"""What the causes of pasted messages (`points/messages.md`) rest on."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def layers_that_no_module_holds() -> None:
    class Misspelt(nn.Module):
        def _init_(self) -> None:
            self.layer = nn.Linear(2, 2)

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self_layer = nn.Linear(2, 2)
            del self_layer

    class Anew(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Linear(2, 2)(x)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.randn(2, 2)
            self.moved = nn.Parameter(torch.randn(2, 2)).double()

    class NoModule:
        def __init__(self) -> None:
            self.layer = nn.Linear(2, 2)

    for made in (Misspelt(), Local(), Anew(), Plain()):
        assert list(made.parameters()) == []
        with pytest.raises(ValueError, match="empty parameter list"):
            torch.optim.SGD(made.parameters(), 0.1)
    x = torch.ones(1, 2)
    assert not torch.equal(Anew()(x), Anew()(x))
    assert not Plain().moved.is_leaf
    with pytest.raises(AttributeError, match="no attribute 'parameters'"):
        NoModule().parameters()  # type: ignore[attr-defined]


def an_iterator_is_read_once() -> None:
    trained = filter(lambda p: p.requires_grad, nn.Linear(2, 2).parameters())
    assert len(list(trained)) == 2
    with pytest.raises(ValueError, match="empty parameter list"):
        torch.optim.SGD(trained, 0.1)


def a_result_that_nobody_takes() -> None:
    x = torch.randn(4, 2, 3)
    x.view(4, -1)
    assert x.shape == (4, 2, 3)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        nn.Linear(6, 1)(x)
    assert nn.Linear(6, 1)(x.view(4, -1)).shape == (4, 1)


def a_view_cuts_the_batch() -> None:
    x, labels = torch.randn(4, 8, 3, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(
        ValueError, match=r"input batch_size \(12\) to match target batch_size \(4\)"
    ):
        F.cross_entropy(x.view(-1, 24), labels)
    with pytest.raises(
        ValueError, match=r"input batch_size \(2\) to match target batch_size \(4\)"
    ):
        F.cross_entropy(x.view(-1, 144), labels)
    assert x.flatten(1).shape == (4, 72)


def bce_wants_equal_shapes() -> None:
    for output, target in (((4, 1), (4,)), ((4, 2), (4,)), ((2, 3, 5), (2, 4, 5)), ((4, 9), (4,))):
        with pytest.raises(ValueError, match="target size"):
            F.binary_cross_entropy(torch.rand(output), torch.rand(target))
        with pytest.raises(ValueError, match="Target size"):
            F.binary_cross_entropy_with_logits(torch.randn(output), torch.rand(target))


def a_graph_serves_one_backward() -> None:
    weight = torch.ones(2, requires_grad=True)
    loss = weight.exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    weight.exp().sum().backward()


def an_optimizer_moves_only_what_it_was_given() -> None:
    old, new = nn.Linear(2, 1), nn.Linear(2, 1)
    before = new.weight.detach().clone()
    optimizer = torch.optim.SGD(old.parameters(), lr=0.1)
    new(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert new.weight.grad is not None and torch.equal(new.weight, before)


def beyond_two_by_the_curvature_descent_diverges() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 1) * 10
    limit = 1 / (x.pow(2).mean().item() + 1)
    for rate, learns in ((0.7 * limit, True), (1.3 * limit, False)):
        layer = nn.Linear(1, 1)
        losses = []
        for _ in range(60):
            loss = F.mse_loss(layer(x), 3 * x)
            (weight, bias) = torch.autograd.grad(loss, (layer.weight, layer.bias))
            with torch.no_grad():
                layer.weight -= rate * weight
                layer.bias -= rate * bias
            losses.append(loss.item())
        assert (losses[-1] < 0.1 * losses[0]) is learns
        assert learns or losses[-1] > 100 * losses[0]


def what_has_no_return_is_none() -> None:
    class Silent(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            x.relu()

    assert Silent()(torch.ones(2)) is None
    with pytest.raises(TypeError, match="must be Tensor, not NoneType"):
        F.cross_entropy(Silent()(torch.ones(2)), torch.tensor([0]))


def an_activation_is_made_before_it_is_called() -> None:
    x = torch.randn(2, 3)
    made = nn.ReLU(x)  # type: ignore[arg-type]
    assert isinstance(made, nn.ReLU)
    with pytest.raises(TypeError, match="must be Tensor, not ReLU"):
        nn.Linear(3, 1)(made)
    assert torch.equal(nn.ReLU()(x), torch.relu(x))


def a_moved_leaf_is_no_leaf() -> None:
    moved = torch.randn(3, requires_grad=True).double()
    assert not moved.is_leaf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moved.sum().backward()
        assert moved.grad is None
    last = torch.randn(3).double().requires_grad_()
    last.sum().backward()
    assert last.is_leaf and last.grad is not None


def collate_needs_equal_shapes() -> None:
    collate = torch.utils.data.default_collate
    for one, two in (
        ((3, 8, 6), (3, 9, 6)),
        ((3, 8, 8), (1, 8, 8)),
        ((5,), (1,)),
        ((4, 6), (6, 4)),
    ):
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
            collate([torch.zeros(one), torch.zeros(two)])
        assert collate([torch.zeros(one)]).shape == (1, *one)


def backward_wants_one_number() -> None:
    losses = torch.randn(2, 4, requires_grad=True).mean(1)  # one for each device
    with pytest.raises(RuntimeError, match="implicitly created only for scalar outputs"):
        losses.backward()
    losses.mean().backward()


def bce_wants_floats() -> None:
    output, whole = torch.rand(4), torch.full((4,), 1)
    assert whole.dtype == torch.int64
    with pytest.raises(RuntimeError, match="Long"):
        F.binary_cross_entropy(output, whole)
    F.binary_cross_entropy(output, whole.float())


def cross_entropy_wants_class_indices() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0.0, 1.0, 2.0, 0.0])
    with pytest.raises(RuntimeError, match="Long"):
        F.cross_entropy(logits, labels)
    F.cross_entropy(logits, labels.long())


def only_the_last_batch_is_learnt() -> None:
    layer = nn.Linear(2, 1, bias=False)
    first, last = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    for x in (first, last):
        loss = layer(x).sum()
    loss.backward()
    assert layer.weight.grad is not None and layer.weight.grad.tolist() == [[0.0, 1.0]]


def a_new_model_has_learnt_nothing() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    y = x.sum(1, keepdim=True)

    def trained(model: nn.Module) -> float:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        before = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        before.backward()
        optimizer.step()
        return before.item()

    kept = nn.Linear(3, 1)
    course = [trained(kept) for _ in range(50)]
    anew = [trained(nn.Linear(3, 1)) for _ in range(50)]
    assert course[-1] < 0.1 * course[0] and min(anew[10:]) > 0.1 * anew[0]


def a_new_optimizer_forgets() -> None:
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    assert optimizer.state[weight]["step"] == 1
    assert weight not in torch.optim.Adam([weight], lr=0.1).state


def a_second_sigmoid_is_nearly_flat() -> None:
    logits = torch.linspace(-20, 20, 9)
    twice = logits.sigmoid().sigmoid()
    assert twice.min() >= 0.5 and twice.max() < 0.74
    target = torch.zeros(9)
    assert F.binary_cross_entropy_with_logits(logits.sigmoid(), target) > 0.69


def a_second_softmax_is_nearly_flat() -> None:
    best = F.one_hot(torch.tensor([3]), 10).float()  # the surest output of a softmax
    assert 1.46 < F.cross_entropy(best, torch.tensor([3])).item() < 1.47


def a_loss_is_minimised() -> None:
    layer = nn.Linear(2, 1)
    x, y = torch.randn(8, 2), torch.zeros(8, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    before = F.mse_loss(layer(x), y)
    (-before).backward()
    optimizer.step()
    assert F.mse_loss(layer(x), y) > before


def a_dataset_reads_what_it_is_asked_for() -> None:
    class Same(torch.utils.data.Dataset[int]):
        files = (4, 5, 6)

        def __getitem__(self, index: int) -> int:
            return self.files[0]

    assert [Same()[n] for n in range(3)] == [4, 4, 4]


def a_loss_class_is_made_first() -> None:
    output, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    with pytest.raises(RuntimeError, match="Boolean value of Tensor"):
        nn.CrossEntropyLoss(output, target)  # type: ignore[arg-type]
    nn.CrossEntropyLoss()(output, target)


def parameters_is_a_method() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        torch.optim.SGD(nn.Linear(2, 2).parameters, lr=0.1)  # type: ignore[arg-type]
