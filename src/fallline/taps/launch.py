"""Runs a script as `python SCRIPT` would: same arguments, paths, `__main__`, output, exceptions and exit status.

torch is not imported before the script does it (a script may set OMP_NUM_THREADS or CUDA_VISIBLE_DEVICES first): the
taps are put in place at the end of its own `import torch`.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

from fallline.errors import UsageError
from fallline.runs.ending import ending
from fallline.taps.frames import claim
from fallline.taps.on_import import after_import

__all__ = ["after_torch", "execute", "report", "run_target", "without_us"]

Prepared = tuple[types.CodeType, types.ModuleType]
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def after_torch(install: Callable[[], None]) -> None:
    """Call `install` as soon as torch has been imported; now, when it is already."""
    after_import("torch", install)


def run_target(
    target: str,
    arguments: list[str],
    *,
    module: bool,
    ready: Callable[[], None],
    finish: Callable[[str], None],
    crashed: Callable[[BaseException], None],
) -> int:
    """Run the script (or `-m` module) to its end; its exit status.

    `ready()` is called just before it starts. `finish(status)` is called when all of it is over: its threads have ended and its
    exit handlers have run. It is itself the interpreter's last exit handler, registered before the script's own.
    """
    prepared = prepare(target, arguments, module=module)
    over = _Ending(finish)
    atexit.register(over)
    ready()
    status, error = run_prepared(prepared)
    if isinstance(error, SystemExit):
        over.status = f"exit {status}"
    elif error is not None:
        over.status = ending(error)
        crashed(error)
        report(error)
    over.interrupted = isinstance(error, KeyboardInterrupt)
    return status


class _Ending:
    """What is left to do when the interpreter has waited for the script's threads and called its exit handlers."""

    def __init__(self, finish: Callable[[str], None]) -> None:
        self.status = "finished"
        self.interrupted = False
        self._finish = finish

    def __call__(self) -> None:
        self._finish(self.status)
        _flush()
        if self.interrupted:
            # python itself ends by the signal, so that a shell's loop stops too
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)


def execute(target: str, arguments: list[str], *, module: bool) -> tuple[int, BaseException | None]:
    """Run it to its end: its exit status, and what it raised, if anything."""
    return run_prepared(prepare(target, arguments, module=module))


def prepare(target: str, arguments: list[str], *, module: bool) -> Prepared:
    """Set arguments and path as `python` does for this script. A script that is not there is a wrong usage."""
    return _prepare_module(target, arguments) if module else _prepare_script(target, arguments)


def run_prepared(prepared: Prepared) -> tuple[int, BaseException | None]:
    """Run it as `__main__`: its exit status, and what it raised, if anything."""
    code, main = prepared
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


def _prepare_script(target: str, arguments: list[str]) -> Prepared:
    path = os.path.abspath(target)
    if os.path.isdir(path):
        return _prepare_folder(target, arguments)
    if path.endswith(".ipynb"):
        raise UsageError(
            f"{target} is a notebook: put `%load_ext fallline` and `%%watch` into it (docs/notebooks.md), "
            "or make a script of it with `jupyter nbconvert --to script`"
        )
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"cannot open {target}: {error.strerror or error}") from None
    sys.argv = [target, *arguments]
    # a script that is a link imports from the folder of the file it points to
    _first_on_path(os.path.dirname(os.path.realpath(path)))
    main = _main_module(path, None)
    main.__dict__["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    return _compiled(source, path), main


def _prepare_folder(target: str, arguments: list[str]) -> Prepared:
    """A folder with a `__main__.py` in it runs as a module that is found there."""
    folder = os.path.abspath(target)
    if not os.path.isfile(os.path.join(folder, "__main__.py")):
        raise UsageError(f"there is no __main__.py in {target}; name the script to run")
    _first_on_path(folder)
    if sys.flags.safe_path:
        sys.path.insert(0, folder)  # which keeps out the folder of a script, not one that is run
    spec = importlib.machinery.PathFinder.find_spec("__main__", [folder])
    if spec is None:
        raise UsageError(f"cannot read __main__.py in {target}")
    sys.argv = [target, *arguments]
    return _module_code(target, spec)


def _prepare_module(target: str, arguments: list[str]) -> Prepared:
    _first_on_path(os.getcwd())
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
    prepared = _module_code(target, spec)
    sys.argv[0] = spec.origin
    claim(os.path.dirname(spec.origin))
    return prepared


def _module_code(target: str, spec: importlib.machinery.ModuleSpec) -> Prepared:
    loader: Any = spec.loader
    try:
        code = loader.get_code(spec.name)
    except SyntaxError as error:
        error.__traceback__ = None
        report(error)
        raise SystemExit(1) from None
    if code is None or spec.origin is None:
        raise UsageError(f"the module {target} has no Python source to run")
    main = _main_module(spec.origin, spec)
    main.__dict__.update(__loader__=loader, __package__=spec.parent, __cached__=spec.cached)
    return code, main


def _first_on_path(folder: str) -> None:
    """In the place of our own entry; with PYTHONSAFEPATH or `python -P` there is none."""
    if not sys.flags.safe_path:
        sys.path[0:1] = [folder]


def _main_module(path: str, spec: Any) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __builtins__=builtins, __spec__=spec, __package__=None, __cached__=None
    )
    if "__annotations__" in vars(sys.modules["__main__"]):  # up to Python 3.13
        main.__dict__.update(__annotations__={})
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


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
