"""Runs a script as `python SCRIPT` would: same arguments, paths, `__main__`, output, exceptions and exit status.

torch is not imported before the script does it (a script may set OMP_NUM_THREADS or CUDA_VISIBLE_DEVICES first): the
taps are put in place at the end of its own `import torch`.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from fallline.errors import UsageError

__all__ = ["after_torch", "execute", "report", "run_target", "without_us"]

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def after_torch(install: Callable[[], None]) -> None:
    """Call `install` as soon as torch is imported; now, when it is already."""
    if "torch" in sys.modules:
        install()
    else:
        sys.meta_path.insert(0, _TorchFinder(install))


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Lets torch be found and loaded as ever, and calls back when it is complete."""

    def __init__(self, install: Callable[[], None]) -> None:
        self._install = install

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            self._install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def run_target(
    target: str,
    arguments: list[str],
    *,
    module: bool,
    finish: Callable[[str], None],
    crashed: Callable[[BaseException], None],
) -> int:
    """Run the script (or `-m` module); `finish(status)` is called when it is over, however it ends."""
    status, error = execute(target, arguments, module=module)
    if isinstance(error, SystemExit):
        text = f"exit {status}"
    elif error is not None:
        text = f"raised {type(error).__name__}: {error}"
        crashed(error)
        report(error)
    else:
        text = "finished"
    interrupted = isinstance(error, KeyboardInterrupt)
    del error  # and with it the script's frames, and all that they hold
    _join_threads()
    finish(text)
    _flush()
    if interrupted:
        # python itself ends by the signal, so that a shell's loop stops too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def execute(target: str, arguments: list[str], *, module: bool) -> tuple[int, BaseException | None]:
    """Run it to its end: its exit status, and what it raised, if anything."""
    code, main = (
        _prepare_module(target, arguments) if module else _prepare_script(target, arguments)
    )
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)
    except SystemExit as error:
        return _exit_status(error), error
    except KeyboardInterrupt as error:
        return 130, error
    except BaseException as error:
        return 1, error
    return 0, None


def _prepare_script(target: str, arguments: list[str]) -> tuple[types.CodeType, types.ModuleType]:
    path = os.path.abspath(target)
    if os.path.isdir(path):
        inner = os.path.join(path, "__main__.py")
        if not os.path.isfile(inner):
            raise UsageError(f"there is no __main__.py in {target}; name the script to run")
        folder, path = path, inner
    else:
        folder = os.path.dirname(path)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"cannot open {target}: {error.strerror or error}") from None
    sys.argv = [target, *arguments]
    sys.path[0:1] = [folder]
    main = _main_module(path, None)
    main.__dict__["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    return _compiled(source, path), main


def _prepare_module(target: str, arguments: list[str]) -> tuple[types.CodeType, types.ModuleType]:
    sys.path[0:1] = [os.getcwd()]
    sys.argv = ["-m", *arguments]
    try:
        spec = importlib.util.find_spec(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(target + ".__main__")
    except (ImportError, ValueError) as error:
        raise UsageError(f"cannot find the module {target}: {error}") from None
    if spec is None or spec.origin is None or spec.loader is None:
        raise UsageError(
            f"cannot find the module {target}: is it on the path, and spelled as in `import {target}`?"
        )
    code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
    if code is None:
        raise UsageError(f"the module {target} has no Python source to run")
    sys.argv[0] = spec.origin
    from fallline.taps.frames import claim

    claim(os.path.dirname(spec.origin))
    main = _main_module(spec.origin, spec)
    main.__dict__.update(__loader__=spec.loader, __package__=spec.parent, __cached__=spec.cached)
    return code, main


def _main_module(path: str, spec: Any) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __builtins__=builtins, __spec__=spec, __package__=None, __cached__=None
    )
    return main


def _compiled(source: bytes, path: str) -> types.CodeType:
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        error.__traceback__ = None
        report(error)
        raise SystemExit(1) from None


def without_us(error: BaseException) -> None:
    """Take fallline's own frames out of an exception's traceback, and out of those it came from."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        here = queue.pop()
        if here is None or id(here) in seen:
            continue
        seen.add(id(here))
        here.__traceback__ = _clean(here.__traceback__)
        queue += [here.__cause__, here.__context__]


def _clean(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept = []
    while trace is not None:
        if not os.path.abspath(trace.tb_frame.f_code.co_filename).startswith(_HERE):
            kept.append(trace)
        trace = trace.tb_next
    cleaned: types.TracebackType | None = None
    for entry in reversed(kept):
        cleaned = types.TracebackType(cleaned, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return cleaned


def report(error: BaseException) -> None:
    """As the interpreter does with an exception that nobody caught, and without fallline's own frames."""
    without_us(error)
    _flush()
    sys.excepthook(type(error), error, error.__traceback__)


def _exit_status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    _flush()
    print(error.code, file=sys.stderr)
    return 1


def _join_threads() -> None:
    """The interpreter waits for threads that are not daemons, and so does the end of the run."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
