"""The name of a tensor and the index that is given with it belong together, whichever view an operation got."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402

from fallline.replay.named import NamedTensors  # noqa: E402

X = torch.arange(400.0).reshape(100, 4)
SLICE = X[60:70]
WHOLE = NamedTensors({"X": X})
BOTH = NamedTensors({"X": X, "xb": SLICE})
VIEWS: list[tuple[str, Callable[[], Tensor], list[int], NamedTensors, tuple[str | None, list[int]]]]
VIEWS = [
    ("itself", lambda: SLICE, [3, 2], BOTH, ("xb", [3, 2])),
    ("the same slice again", lambda: X[60:70], [3, 2], BOTH, ("xb", [3, 2])),
    ("a slice without a name", lambda: X[60:70], [3, 2], WHOLE, ("X", [63, 2])),
    ("transposed", lambda: SLICE.t(), [2, 3], BOTH, ("xb", [3, 2])),
    ("flat", lambda: SLICE.reshape(-1), [14], BOTH, ("xb", [3, 2])),
    ("outside the smaller one", lambda: X[70:], [1, 1], BOTH, ("X", [71, 1])),
    ("every second column", lambda: X[:, ::2], [5, 1], WHOLE, ("X", [5, 2])),
    ("one more dimension", lambda: X[None], [0, 7, 3], WHOLE, ("X", [7, 3])),
    ("in a dictionary", lambda: X[1:], [0, 0], NamedTensors({"b": {"x": X}}), ("b['x']", [1, 0])),
    ("another storage", lambda: X.clone(), [3, 2], BOTH, (None, [3, 2])),
]


@pytest.mark.parametrize(
    ("view", "index", "names", "expected"), [v[1:] for v in VIEWS], ids=[v[0] for v in VIEWS]
)
def test_name_and_index_belong_together(
    view: Callable[[], Tensor],
    index: list[int],
    names: NamedTensors,
    expected: tuple[str | None, list[int]],
) -> None:
    assert names.find(view(), index) == expected


def test_a_name_of_the_users_comes_before_that_of_an_argument() -> None:
    arguments = NamedTensors({"input": SLICE, "y": (other := torch.ones(2))}).called(
        "{} of Linear.forward"
    )
    names = WHOLE | arguments
    assert names.find(SLICE, [3, 2]) == ("X", [63, 2])
    assert names.find(other, [1]) == ("y of Linear.forward", [1])
