"""Calls back when a module has been executed, whoever imports it and in whatever way.

A finder in front of all others hands out the module's spec with a loader that calls back once the module is complete. Asking
for the spec executes nothing (`importlib.util.find_spec("torch")`, as transformers and datasets do), so the finder stays until
the module has really been executed.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["after_import"]


def after_import(name: str, call: Callable[[], None]) -> None:
    """Call `call` once, as soon as the module is complete; now, when it is already imported."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the finders behind it do, and calls back when the module has been executed."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name = name
        self._call: Callable[[], None] | None = call
        self._watching: ModuleSpec | None = None  # found by a finder that did not ask us

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == self.name:
            return self._found(path, target)
        if name.startswith(self.name + "."):
            self._loading_without_us()
        return None

    def _found(self, path: Any, target: Any) -> ModuleSpec | None:
        # the finders in front of this one have had their turn; to ask them again could go round in circles
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for finder in behind:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(self.name, path, target) if find is not None else None
            if spec is None:
                continue
            loader: Any = spec.loader
            if hasattr(loader, "exec_module") and not isinstance(loader, _Loader):
                spec.loader = _Loader(loader, self._executed)  # type: ignore[assignment]
            return spec
        return None

    def _loading_without_us(self) -> None:
        """A submodule is looked up while the module is being loaded by a finder in front: watch its spec instead."""
        module = sys.modules.get(self.name)
        spec: Any = getattr(module, "__spec__", None)
        if type(spec) is ModuleSpec and spec is not self._watching:
            if getattr(spec, "_initializing", False) and self._call is not None:
                self._watching = spec
                _call_when_loaded(spec, lambda: self._executed(module))

    def _executed(self, module: ModuleType | None) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        if sys.modules.get(self.name) is not module:
            self._call = call  # the import failed, or somebody executes a copy; the real one is still to come
            return
        with suppress(ValueError):
            sys.meta_path.remove(self)
        call()


class _Loader:
    """A module's own loader in all but this: it calls back when it has executed the module.

    It stands in for the loader in one spec and changes nothing on the loader itself, which other modules may share.
    """

    def __init__(self, loader: Any, executed: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._executed = executed

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        if spec is not None and spec.loader is self:
            spec.loader = self._loader  # what the module sees of itself is as ever
        if module.__loader__ is self:
            module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._executed(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _call_when_loaded(spec: Any, call: Callable[[], None]) -> None:
    """The import system notes on a module's spec that it has been loaded: be told."""

    class Loading(ModuleSpec):
        @property
        def _initializing(self) -> bool:
            return bool(self.__dict__["_initializing"])

        @_initializing.setter
        def _initializing(self, value: bool) -> None:
            self.__dict__["_initializing"] = value
            if not value:
                self.__class__ = ModuleSpec  # type: ignore[assignment]
                call()

    spec.__class__ = Loading
