"""`fallline.clip_grad_norm_` is torch's, with more: same arguments, same result, each parameter once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fallline
from fallline.errors import EngineError

torch.set_num_threads(1)


def parameters(shapes, dtypes, seed=0, gaps=False):
    torch.manual_seed(seed)
    made = [
        nn.Parameter(torch.zeros(shape, dtype=dtype))
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    for i, p in enumerate(made):
        if not (gaps and i % 3 == 1):
            p.grad = torch.randn(p.shape).to(p.dtype)
    return made


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=6),
    dtypes=st.lists(st.sampled_from(FLOATS), min_size=6, max_size=6),
    norm_type=st.sampled_from([1.0, 2.0, 3.5, math.inf]),
    max_norm=st.sampled_from([0.0, 0.1, 1.0, 1e6, math.inf]),
    foreach=st.sampled_from([None, False, True]),
    seed=st.integers(0, 1000),
    gaps=st.booleans(),
)
def test_as_torch(shapes, dtypes, norm_type, max_norm, foreach, seed, gaps):
    dtypes = dtypes[: len(shapes)]
    mine, theirs = parameters(shapes, dtypes, seed, gaps), parameters(shapes, dtypes, seed, gaps)
    got = fallline.clip_grad_norm_((p for p in mine), max_norm, norm_type, foreach=foreach)
    want = torch.nn.utils.clip_grad_norm_((p for p in theirs), max_norm, norm_type, foreach=foreach)
    assert got.dtype is want.dtype and got.shape == want.shape and got.device == want.device
    half = any(d in (torch.bfloat16, torch.float16) for d in dtypes)
    tolerance = {"rtol": 3e-2, "atol": 1e-2} if half else {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(got, want, **tolerance)
    for a, b in zip(mine, theirs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, **tolerance)


def test_one_tensor_no_gradients_and_an_empty_list():
    p = parameters([(3,)], [torch.float32])[0]
    assert fallline.clip_grad_norm_(p, 1.0).shape == ()
    p.grad = None
    assert float(fallline.clip_grad_norm_([p], 1.0)) == 0.0
    assert float(fallline.clip_grad_norm_([], 1.0)) == 0.0


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_not_finite_as_torch(value):
    mine, theirs = (
        parameters([(3,), (2,)], [torch.float32] * 2),
        parameters([(3,), (2,)], [torch.float32] * 2),
    )
    for p in (mine[0], theirs[0]):
        p.grad[1] = value
    with pytest.raises(RuntimeError, match="non-finite"):
        fallline.clip_grad_norm_(mine, 1.0, error_if_nonfinite=True)
    got, want = fallline.clip_grad_norm_(mine, 1.0), torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    torch.testing.assert_close(got, want, equal_nan=True)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, equal_nan=True)


def test_a_parameter_given_twice_is_clipped_once():
    mine, once = parameters([(4,)], [torch.float64])[0], parameters([(4,)], [torch.float64])[0]
    fallline.clip_grad_norm_([mine, mine], 0.5)
    fallline.clip_grad_norm_([once], 0.5)
    assert torch.equal(mine.grad, once.grad)


def test_sparse_gradients_have_a_norm():
    embedding = nn.Embedding(10, 3, sparse=True)
    embedding(torch.tensor([1, 1, 4])).sum().backward()
    dense = nn.Embedding(10, 3)
    dense(torch.tensor([1, 1, 4])).sum().backward()
    got = fallline.clip_grad_norm_(embedding.parameters(), 1e9)
    torch.testing.assert_close(got, torch.nn.utils.clip_grad_norm_(dense.parameters(), 1e9))
    row = fallline.gradient_stats(embedding).rows()[0]
    assert row["zeros"] == 24 and row["largest"] == 2.0


def test_per_layer_and_per_group():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model(torch.randn(2, 3, 8)).square().sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    norms = fallline.clip_grad_norm_(model, 0.5, per="layer")
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in before))
    assert len(norms) == len(layers)
    for norm, layer in zip(norms, layers, strict=True):
        members = [n for n in before if n.rpartition(".")[0] == layer]
        total = torch.stack([before[n].norm() for n in members]).norm()
        torch.testing.assert_close(norm, total)
        for n in members:
            torch.testing.assert_close(
                model.get_parameter(n).grad,
                before[n] * min(1.0, float(0.5 / (total + 1e-6))),
                rtol=1e-4,
                atol=1e-7,
            )
    optimizer = torch.optim.SGD(
        [{"params": model.norm1.parameters()}, {"params": model.linear1.parameters()}], lr=0.1
    )
    assert len(fallline.clip_grad_norm_(optimizer, 0.1, per="group")) == 2
    assert len(fallline.clip_grad_norm_(model.named_parameters(), 0.1, per="layer")) == len(layers)


def test_what_cannot_be_done_is_said():
    p = parameters([(3,)], [torch.float32])
    for bad in (math.nan, -1.0):
        with pytest.raises(EngineError, match="max_norm"):
            fallline.clip_grad_norm_(p, bad)
    with pytest.raises(EngineError, match="give the model"):
        fallline.clip_grad_norm_(p, 1.0, per="layer")
    with pytest.raises(EngineError, match="give the optimizer"):
        fallline.clip_grad_norm_(p, 1.0, per="group")
    with pytest.raises(EngineError, match="is not known"):
        fallline.clip_grad_norm_(p, 1.0, per="row")


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), max_size=3),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.0, 0.5]),
)
def test_statistics(shape, dtype, seed, share):
    p = parameters([shape], [dtype], seed)[0]
    p.grad = p.grad * (torch.rand(shape) >= share).to(dtype)
    stats, exact = fallline.gradient_stats([("w", p)]), p.grad.double()
    assert stats.names == ("w",) and len(stats) == 1
    for got, want in (
        (stats.norm, exact.norm()),
        (stats.mean, exact.mean()),
        (stats.std, exact.std(correction=0)),
        (stats.largest, exact.abs().max()),
        (stats.zeros, (exact == 0).sum().double()),
        (stats.nonfinite, torch.tensor(0.0, dtype=torch.float64)),
        (stats.total_norm, exact.norm()),
    ):
        torch.testing.assert_close(got.reshape(()), want.reshape(()), rtol=1e-5, atol=1e-7)


def test_statistics_of_values_that_are_not_finite():
    p = parameters([(10,)], [torch.float32])[0]
    p.grad[3], p.grad[7] = math.inf, math.nan
    row = fallline.gradient_stats([p]).rows()[0]
    assert (
        row["nonfinite"] == 2
        and math.isnan(row["norm"])
        and math.isnan(row["mean"])
        and math.isnan(row["largest"])
    )
    assert len(fallline.gradient_stats([nn.Parameter(torch.ones(2))])) == 0
