"""fallline keeps PyTorch training on the steepest way down.

The public names are imported on first use, so that `import fallline` stays quick and never
imports torch.
"""

from __future__ import annotations

import sys

from fallline._version import __version__

if sys.version_info < (3, 11):  # noqa: UP036 - said here, before anything that an older Python cannot import
    _WHY = (
        f"fallline needs Python 3.11 or newer, and this is {sys.version.split()[0]} ({sys.executable}). "
        "`fallline check` and `fallline report` can be installed into a newer one: they do not need your training environment."
    )
    if sys.argv[0] == "-m" or sys.argv[0].endswith("fallline"):
        sys.stderr.write(f"{_WHY}\n")
        sys.exit(2)
    raise ImportError(_WHY)

# type checkers take it for true; importing `typing` would double the start-up
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallline.engine import (
        Order,
        Rewind,
        Share,
        Stepper,
        clip_grad_norm_,
        distributed,
        gradient_stats,
        load_checkpoint,
        save_checkpoint,
        seed_everything,
        verify_resume,
        wait_for_checkpoint,
    )
    from fallline.instruments import check_function, precision_probe
    from fallline.instruments.equal import equal
    from fallline.integrations.data import measure_data
    from fallline.integrations.watch import watch

_HOME = {
    "Order": "fallline.engine",
    "Rewind": "fallline.engine",
    "Share": "fallline.engine",
    "Stepper": "fallline.engine",
    "clip_grad_norm_": "fallline.engine",
    "gradient_stats": "fallline.engine",
    "save_checkpoint": "fallline.engine",
    "load_checkpoint": "fallline.engine",
    "verify_resume": "fallline.engine",
    "wait_for_checkpoint": "fallline.engine",
    "seed_everything": "fallline.engine",
    "distributed": "fallline.engine",
    "check_function": "fallline.instruments",
    "precision_probe": "fallline.instruments",
    "measure_data": "fallline.integrations.data",
    "equal": "fallline.instruments.equal",
    "watch": "fallline.integrations.watch",
}

__all__ = [
    "Order",
    "Rewind",
    "Share",
    "Stepper",
    "__version__",
    "check_function",
    "clip_grad_norm_",
    "distributed",
    "equal",
    "gradient_stats",
    "load_checkpoint",
    "measure_data",
    "precision_probe",
    "save_checkpoint",
    "seed_everything",
    "verify_resume",
    "wait_for_checkpoint",
    "watch",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        from importlib import import_module

        try:
            return getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError(
                f"fallline.{name} needs torch, which is not installed here: pip install 'fallline[torch]'",
                name="torch",
            ) from None
    raise AttributeError(f"module 'fallline' has no attribute {name!r}")


def load_ipython_extension(shell: object) -> None:
    """`%load_ext fallline` in a notebook: gives it `%%watch`."""
    from fallline.integrations.notebook import load

    load(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
