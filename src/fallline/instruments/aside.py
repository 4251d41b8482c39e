"""Files that are written here go into a folder of their own, and are read back from there; the real ones stay as they are.

Python's own ways of writing are covered, and torch.save, safetensors and sqlite3, which write without Python. Temporary files and
caches are real: they are not the script's results. Programs that the script starts are not covered.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fallline.taps.on_import import after_import
from fallline.taps.patches import Patches, Wrapped

__all__ = ["OFFLINE", "Aside"]

# For the environment of a run that is not the user's own: nothing is sent anywhere, and nothing is logged twice.
OFFLINE = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "offline",
    "TOKENIZERS_PARALLELISM": "false",
}

_SYSTEM = ("/dev", "/proc", "/sys")
# Where compilers and downloads keep what they have made; compilers are programs, and look for it in the real place.
_CACHES = (
    "XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_HOME", "HF_HOME",
    "CUDA_CACHE_PATH", "TRITON_HOME",
)  # fmt: skip
_CACHES_AT_HOME = ("~/.cache", "~/.triton", "~/.nv")
# module, function, which argument is the file, its name
_FOREIGN = (
    ("torch", "save", 1, "f"),
    ("safetensors.torch", "serialize_file", 1, "filename"),
    ("sqlite3", "connect", 0, "database"),
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Aside:
    """The folder that stands for the file system, as far as it is written to."""

    def __init__(self, folder: str, patches: Patches) -> None:
        self.folder = os.path.realpath(folder)
        self.gone: set[str] = set()  # deleted here, and still there really
        caches = (os.environ[name] for name in _CACHES if os.environ.get(name))
        home = (os.path.expanduser(path) for path in _CACHES_AT_HOME)
        real = (*_SYSTEM, *home, *caches, self.folder)
        self._passes = tuple(os.path.realpath(path) for path in real)
        self._own = threading.local()  # inside of what is done here, the real functions are meant
        self._install(patches)

    # -- paths -----------------------------------------------------------------------------------------------------

    def _real_file(self, path: str) -> bool:
        """Whether it is written where it is: devices, caches, temporary files."""
        if any(path == p or path.startswith(p + os.sep) for p in self._passes):
            return True
        below = os.path.realpath(tempfile.gettempdir()) + os.sep
        first = path[len(below) :].partition(os.sep)[0] if path.startswith(below) else ""
        return first.startswith(("tmp", "torchinductor_", "pymp-", "torchelastic_"))

    def _there(self, path: str) -> bool:
        try:
            with self._really():
                os.stat(path, follow_symlinks=False)
        except (OSError, ValueError):
            return False
        return True

    def _copy_of(self, path: str) -> str:
        return self.folder + path

    def path(self, name: Any, *, write: bool = False, keep: bool = False) -> Any:
        """Where this file is, or is to be written. `keep`: what is in it now is needed."""
        if isinstance(name, int) or name is None:
            return name
        with self._really():
            return self._place(name, write, keep)

    @contextmanager
    def _really(self) -> Iterator[None]:
        before, self._own.busy = self._busy, True
        try:
            yield
        finally:
            self._own.busy = before

    @property
    def _busy(self) -> bool:
        return bool(getattr(self._own, "busy", False))

    def _whole(self, path: Any, kwargs: dict[str, Any]) -> Any:
        """The path of a file that is named within an open folder, as `shutil.rmtree` names those that it deletes."""
        folder = kwargs.get("dir_fd")
        if folder is None or isinstance(path, int):
            return path
        try:
            with self._really():
                found = os.readlink(f"/proc/self/fd/{folder}")
        except OSError:  # a system that does not say
            return path
        del kwargs["dir_fd"]
        return os.path.join(found, os.fsdecode(path))

    def _place(self, name: Any, write: bool, keep: bool) -> Any:
        plain = os.fspath(name)
        if isinstance(plain, bytes):
            plain = os.fsdecode(plain)
        full = os.path.abspath(plain)
        full = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
        if self._real_file(full):
            return name
        copy = self._copy_of(full)
        if not write:
            if self._there(copy):
                return copy
            return copy if full in self.gone else name
        parent = os.path.dirname(full)
        if not self._there(parent) and not self._there(self._copy_of(parent)):
            return copy  # there is no such folder: opening it fails as it should
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        if keep and not self._there(copy) and full not in self.gone and os.path.isfile(full):
            shutil.copyfile(full, copy)
        self.gone.discard(full)
        return copy

    # -- patches -----------------------------------------------------------------------------------------------------

    def _install(self, patches: Patches) -> None:
        def patch(owner: Any, name: str, ours: Callable[..., Any]) -> None:
            patches.patch(owner, name, lambda original: self._instead(original, ours))

        for owner in (builtins, io):
            patch(owner, "open", self._open)
        patch(os, "open", self._os_open)
        for name in ("stat", "lstat", "access", "scandir", "readlink"):
            patch(os, name, self._read)
        patch(os, "listdir", self._listdir)
        patch(os, "mkdir", self._mkdir)
        for name in ("remove", "unlink", "rmdir"):
            patch(os, name, self._remove)
        patch(shutil, "rmtree", self._remove)
        for name in ("rename", "replace", "link", "symlink"):
            patch(os, name, self._move)
        for name in ("truncate", "utime", "chmod"):
            patch(os, name, self._change)
        for module, name, place, keyword in _FOREIGN:
            after_import(module, functools.partial(self._foreign, patches, module, name, place, keyword))  # fmt: skip

    def _instead(self, original: Wrapped, ours: Callable[..., Any]) -> Wrapped:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._busy:
                return original(*args, **kwargs)
            return ours(original, *args, **kwargs)

        return call

    def _open(
        self, original: Wrapped, file: Any, mode: str = "r", *args: Any, **kwargs: Any
    ) -> Any:
        writes = any(letter in mode for letter in "wax+")
        keep = "a" in mode or ("+" in mode and "w" not in mode)
        return original(self.path(file, write=writes, keep=keep), mode, *args, **kwargs)

    def _os_open(self, original: Wrapped, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        path = self._whole(path, kwargs)
        if kwargs.get("dir_fd") is None:
            path = self.path(path, write=bool(flags & _WRITES), keep=not flags & os.O_TRUNC)
        return original(path, flags, *args, **kwargs)

    def _read(self, original: Wrapped, path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        path = self._whole(path, kwargs)
        if kwargs.get("dir_fd") is None:
            path = self.path(path)
        return original(path, *args, **kwargs)

    def _listdir(self, original: Wrapped, path: Any = ".") -> list[Any]:
        place = self.path(path)
        if isinstance(path, int) or place == path or not self._there(os.fspath(path)):
            return list(original(place))
        names = {*original(place), *original(path)}
        full = os.path.abspath(os.fspath(path))
        return sorted(n for n in names if os.path.join(full, n) not in self.gone)

    def _mkdir(self, original: Wrapped, path: Any, *args: Any, **kwargs: Any) -> None:
        if self._there(str(self.path(path))):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        original(self.path(path, write=True), *args, **kwargs)

    def _remove(self, original: Wrapped, path: Any, *args: Any, **kwargs: Any) -> None:
        path = self._whole(path, kwargs)
        if kwargs.pop("dir_fd", None) is not None:
            return  # in a folder whose path is not known
        place, full = self.path(path), os.path.abspath(os.fspath(path))
        if full.startswith(self.folder + os.sep):  # through a folder that was opened here
            self.gone.add(full.removeprefix(self.folder))
        if place != path or self._real_file(full):
            with self._really():
                original(place, *args, **kwargs)
        elif not self._there(full):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.gone.add(full)

    def _move(self, original: Wrapped, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        place = self.path(src)
        if place == src and os.path.isfile(src):
            place = self.path(src, write=True, keep=True)
        original(place, self.path(dst, write=True))
        self.gone.add(os.path.abspath(os.fspath(src)))

    def _change(self, original: Wrapped, path: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self.path(path, write=True, keep=True), *args, **kwargs)

    def _foreign(self, patches: Patches, module: str, name: str, place: int, keyword: str) -> None:
        """A function that writes without Python gets the path where it may."""

        def make(original: Wrapped) -> Wrapped:
            def write(*args: Any, **kwargs: Any) -> Any:
                given = list(args)
                if keyword in kwargs:
                    kwargs[keyword] = self._file(kwargs[keyword])
                elif len(given) > place:
                    given[place] = self._file(given[place])
                return original(*given, **kwargs)

            return write

        owner = sys.modules[module]
        if hasattr(owner, name):
            patches.patch(owner, name, make, imported=True)

    def _file(self, thing: Any) -> Any:
        if isinstance(thing, str | os.PathLike) and str(thing) != ":memory:":
            return self.path(thing, write=True, keep=True)
        return thing
