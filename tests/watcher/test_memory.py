"""Graphs that are alive are counted, and nothing keeps them alive for that."""

from __future__ import annotations

import torch

from fallline.watcher.memory import LiveGraphs

torch.set_num_threads(1)


def test_graphs_are_counted_while_someone_keeps_them() -> None:
    graphs = LiveGraphs()
    weight = torch.ones(3, requires_grad=True)
    kept = []
    for number in range(5):
        loss = (weight * number).sum()
        graphs.note(loss)
        graphs.note(loss)  # the same graph
        kept.append(loss)
    assert graphs.alive == 5
    del loss
    kept.clear()
    assert graphs.alive == 0


def test_what_has_no_graph_is_not_counted() -> None:
    graphs = LiveGraphs()
    graphs.note(torch.ones(3))
    graphs.note("a string")
    assert graphs.alive == 0
