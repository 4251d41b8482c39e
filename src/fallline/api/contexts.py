"""Context managers that change what surrounds the statements in them: no_grad, autocast, no_sync, detect_anomaly."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from fallline.api.paper import Paper
from fallline.api.values import Context, Thing

__all__ = ["anomaly", "autocast", "grad", "no_sync"]


def grad(on: bool) -> Context:
    """no_grad, inference_mode, enable_grad, set_grad_enabled."""

    @contextmanager
    def opens(paper: Paper, node: ast.AST) -> Iterator[None]:
        before, paper.around.recording = paper.around.recording, on
        try:
            yield
        finally:
            paper.around.recording = before

    return Context(opens)


def autocast(dtype: str | None) -> Context:
    """Autocast to this dtype; None: not known."""

    @contextmanager
    def opens(paper: Paper, node: ast.AST) -> Iterator[None]:
        paper.around.autocast.append(dtype)
        try:
            yield
        finally:
            paper.around.autocast.pop()

    return Context(opens)


def no_sync(model: Thing) -> Context:
    """Gradients of this model are not synchronised."""

    @contextmanager
    def opens(paper: Paper, node: ast.AST) -> Iterator[None]:
        paper.around.unsynced.append(model.id)
        try:
            yield
        finally:
            if model.id in paper.around.unsynced:
                paper.around.unsynced.remove(model.id)

    return Context(opens)


def anomaly() -> Context:
    """detect_anomaly."""

    @contextmanager
    def opens(paper: Paper, node: ast.AST) -> Iterator[None]:
        before, paper.around.anomaly = paper.around.anomaly, paper.place(node)
        try:
            yield
        finally:
            paper.around.anomaly = before

    return Context(opens)
