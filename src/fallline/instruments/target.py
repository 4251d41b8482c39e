"""`package.module:name`, as on a command line: imported and looked up."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from fallline.errors import UsageError

__all__ = ["named_object"]


def named_object(target: str) -> Any:
    """What is behind `package.module:name`; the current folder is searched first, as `python -m` does."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise UsageError(f"'{target}' is not a name fallline can import: write package.module:name")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        thing = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise UsageError(
                f"{module_name} imports {error.name}, which is not installed"
            ) from None
        raise UsageError(
            f"there is no module {module_name} here: write it as in `import`, without .py"
        ) from None
    except Exception as error:
        raise UsageError(
            f"importing {module_name} raised {type(error).__name__}: {error}"
        ) from None
    for part in name.split("."):
        if not hasattr(thing, part):
            raise UsageError(f"{module_name} has no {name}")
        thing = getattr(thing, part)
    return thing
