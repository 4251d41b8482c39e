"""Functions that a module has imported by name: reached all together, and given back."""

from __future__ import annotations

import sys
import types

import pytest

from fallline.taps.patches import Patches, Wrapped


def louder(original: Wrapped) -> Wrapped:
    return lambda: original() + "!"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("home")
    module.one, module.two = (lambda: "one"), (lambda: "two")  # type: ignore[attr-defined]
    user = types.ModuleType("user")
    user.first, user.second = module.one, module.two  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "home", module)
    monkeypatch.setitem(sys.modules, "user", user)
    return module


@pytest.mark.parametrize("rebind", [False, True])
def test_names_are_reached_once_everything_is_patched(home: types.ModuleType, rebind: bool) -> None:
    user = sys.modules["user"]
    patches = Patches(rebind=rebind)
    for name in ("one", "two", "two"):  # the second one twice
        patches.patch(home, name, louder, imported=True)
    patches.reach_names()
    assert (home.one(), home.two()) == ("one!", "two!!")
    assert (user.first(), user.second()) == (("one!", "two!!") if rebind else ("one", "two"))
    patches.remove()
    assert [f() for f in (home.one, home.two, user.first, user.second)] == ["one", "two"] * 2


def test_a_name_that_means_something_else_by_now_is_left_alone(home: types.ModuleType) -> None:
    user = sys.modules["user"]
    patches = Patches(rebind=True)
    patches.patch(home, "one", louder, imported=True)
    patches.reach_names()
    user.first = lambda: "mine"  # type: ignore[attr-defined]
    patches.remove()
    assert user.first() == "mine"
