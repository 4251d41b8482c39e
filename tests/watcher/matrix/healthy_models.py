"""Healthy runs that look odd for their models, or for which parts of them are trained when."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from watcher.matrix.architectures import ARCHITECTURES, cnn, images, mlp, vectors
from watcher.matrix.healthy_run import adam, classify, healthy, update


@healthy
def unfreezing() -> None:
    model = mlp()
    for p in model[:4].parameters():
        p.requires_grad_(False)
    optimizer = adam(model)
    for step in range(160):
        if step == 80:
            for p in model.parameters():
                p.requires_grad_(True)
        update(optimizer, classify(model, vectors(32)))


@healthy
def unfreezing_by_no_grad() -> None:
    body, head = mlp(), nn.Linear(4, 4)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
    for step in range(160):
        x, y = vectors(32)
        with torch.set_grad_enabled(step >= 60):
            features = body(x)
        update(optimizer, F.cross_entropy(head(features), y))


@healthy
def low_rank_adapters_start_at_zero() -> None:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, 2, bias=False)
            self.up = nn.Linear(2, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    model = nn.Sequential(Adapted(nn.Linear(16, 32)), nn.ReLU(), Adapted(nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(150):
        update(optimizer, classify(model, vectors(32)))


@healthy
def embeddings_rarely_used() -> None:
    table, head = nn.Embedding(5_000, 16), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(120):
        words = torch.randint(0, 40, (32,))
        update(optimizer, F.cross_entropy(head(table(words)), words % 4))


@healthy
def sparse_embeddings() -> None:
    table, head = nn.Embedding(5_000, 16, sparse=True), nn.Linear(16, 4)
    sparse, dense = torch.optim.SparseAdam(list(table.parameters()), lr=1e-2), adam(head, 1e-2)
    for _ in range(120):
        words = torch.randint(0, 40, (32,))
        loss = F.cross_entropy(head(table(words)), words % 4)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()


@healthy
def mixture_of_experts() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(16, 12)
            self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(12))

        def forward(self, x: Tensor) -> Tensor:
            chance, chosen = self.router(x).softmax(-1).max(-1)
            outputs = torch.zeros(len(x), 4)
            for number, expert in enumerate(self.experts):
                mine = chosen == number
                if mine.any():
                    outputs = outputs.index_put(
                        (mine.nonzero().squeeze(1),), expert(x[mine]) * chance[mine, None]
                    )
            return outputs

    model = Mixture()
    optimizer = adam(model, 1e-2)
    for _ in range(120):
        update(optimizer, classify(model, vectors(4)))


@healthy
def frozen_backbone() -> None:
    model = cnn()
    for p in model[:-1].parameters():
        p.requires_grad_(False)
    optimizer = adam(model, 1e-2)
    for _ in range(100):
        update(optimizer, classify(model, images(16)))


@healthy
def bias_before_batchnorm() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = adam(model)
    for _ in range(120):
        update(optimizer, classify(model, vectors(32)))


@healthy
def deep_tanh_that_learns() -> None:
    layers: list[nn.Module] = [nn.Linear(16, 32)]
    for _ in range(6):
        layers += [nn.Tanh(), nn.Linear(32, 32)]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    optimizer = adam(model)
    for _ in range(150):
        update(optimizer, classify(model, vectors(32)))


@healthy
def two_heads_by_turns() -> None:
    body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
    heads = nn.ModuleList([nn.Linear(32, 4), nn.Linear(32, 4)])
    optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=3e-3)
    for step in range(200):
        x, y = vectors(32)
        update(optimizer, F.cross_entropy(heads[step % 2](body(x)), y if step % 2 else 3 - y))


@healthy
def heads_by_epoch() -> None:
    body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
    heads = nn.ModuleList([nn.Linear(32, 4), nn.Linear(32, 4)])
    optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=3e-3)
    for step in range(240):
        x, y = vectors(32)
        update(optimizer, F.cross_entropy(heads[step // 80 % 2](body(x)), y))


@healthy
def several_models_one_after_another() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        model = mlp()
        optimizer = adam(model)
        for _ in range(60):
            update(optimizer, classify(model, vectors(32)))


@healthy
def average_of_weights_kept_aside() -> None:
    model = mlp()
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = adam(model)
    for _ in range(120):
        x, y = vectors(32)
        output = model(x)
        update(optimizer, F.cross_entropy(output, y) + 0.1 * F.mse_loss(output, teacher(x)))
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)


@healthy
def every_architecture_briefly() -> None:
    for arch in ARCHITECTURES.values():
        model = arch.model()
        optimizer = adam(model, 1e-3)
        for _ in range(70):
            x, y = arch.batch(16)
            update(optimizer, arch.loss(model(x), y))
