"""Where the libraries of a training script are installed, and which of their files hold a text.

There is no index to build or to keep: reading the 2,500 files that can matter and looking for three pieces of text takes less than 0.1 s of CPU, and
what is found is true of the version that is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

__all__ = ["LIBRARIES", "File", "at_path", "holding", "home_of", "named_in", "version_of"]

# in the order in which a name that several of them document is looked up
LIBRARIES = (
    "torch",
    "transformers",
    "lightning",
    "pytorch_lightning",
    "accelerate",
    "peft",
    "trl",
    "torchvision",
    "timm",
    "diffusers",
    "datasets",
    "torchmetrics",
    "deepspeed",
    "bitsandbytes",
    "ignite",
    "torch_geometric",
    "sentence_transformers",
)
# how else people write them
_ALSO = {
    "lightning": ("pl.", "lightning"),
    "pytorch_lightning": ("pl.", "lightning"),
    "transformers": ("trainingarguments", "huggingface", "hugging face"),
    "ignite": ("pytorch-ignite", "pytorch ignite", "ignite."),
    "trl": ("sfttrainer", "dpotrainer", "grpotrainer", "trl"),
    "peft": ("peft", "lora"),
    "sentence_transformers": ("sentence-transformers", "sentence_transformers"),
    "torch_geometric": ("torch_geometric", "pyg"),
}
# folders that no training script calls by name: compilers' insides, model zoos (each repeats the same texts), tests, tools
_SKIPPED = frozenset(
    "models test tests testing __pycache__ include bin lib share _inductor onnx ao _refs _decomp jit fx _export export _dynamo quantization _numpy _prims "
    "_functorch _higher_order_ops _subclasses package _C commands pipelines test_utils _vendor _strobelight masked distributions cli legacy".split()
)
_LARGEST = 1_000_000


@dataclass(frozen=True, slots=True)
class File:
    """One file of a library."""

    library: str
    path: str
    module: str
    text: str

    @property
    def depth(self) -> tuple[bool, int]:
        """How far from what people call: public modules first, then those near the top."""
        return "._" in self.module, self.module.count(".")


@cache
def _site_folders() -> tuple[str, ...]:
    """Where packages can be: the paths of this Python, and of an environment that is activated."""
    active = [os.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    others = [os.path.join(home, "lib", python, "site-packages") for home in active if home]
    return tuple(dict.fromkeys([*filter(None, sys.path), *others]))


@cache
def home_of(library: str) -> str | None:
    """The folder of an installed library; None where it is not installed."""
    folders = (os.path.join(site, library) for site in _site_folders())
    return next((f for f in folders if os.path.isfile(os.path.join(f, "__init__.py"))), None)


@cache
def version_of(library: str) -> str:
    """The version that is installed, from the name of its metadata; empty where that is not known."""
    home = home_of(library)
    if home is None:
        return ""
    for name in os.listdir(os.path.dirname(home)):
        if name.endswith(".dist-info"):
            project, _, version = name.removesuffix(".dist-info").partition("-")
            if project.lower().replace("-", "_") == library:
                return version
    return ""


def named_in(text: str) -> list[str]:
    """The libraries that a text speaks of, by name or by a path in a traceback."""
    low = text.lower()
    return [
        library
        for library in LIBRARIES
        if any(word in low for word in _ALSO.get(library, (library,)))
        or f"site-packages/{library}/" in low
    ]


def _chosen(libraries: Sequence[str]) -> list[str]:
    """These libraries, or all that are installed; Lightning once, whichever of its two names it has."""
    found = [name for name in libraries or LIBRARIES if home_of(name) is not None]
    return [n for n in found if n != "pytorch_lightning" or "lightning" not in found]


@cache
def _files_of(library: str) -> tuple[str, ...]:
    home = home_of(library)
    found: list[str] = []
    folders = [home] if home is not None else []
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found.append(entry.path)
                elif "." not in entry.name and entry.name not in _SKIPPED and entry.is_dir():
                    folders.append(entry.path)
    return tuple(sorted(found))


def _module(library: str, path: str) -> str:
    home = home_of(library)
    assert home is not None
    inside = os.path.relpath(path, os.path.dirname(home)).removesuffix(".py")
    return inside.replace(os.sep, ".").removesuffix(".__init__")


@lru_cache(maxsize=8192)  # a question looks through them more than once
def _read(path: str) -> bytes:
    try:
        with open(path, "rb", 0) as file:
            return file.read(_LARGEST)
    except OSError:
        return b""


def holding(
    pieces: Sequence[str], libraries: Sequence[str] = (), least: int = 1
) -> Iterator[tuple[int, File]]:
    """The files that hold at least so many of the pieces, those of each library in the order of its paths."""
    wanted = [piece.encode() for piece in pieces]
    for library in _chosen(libraries):
        for path in _files_of(library):
            data = _read(path)
            held = sum(piece in data for piece in wanted)
            if held >= least:
                module = _module(library, path)
                yield held, File(library, path, module, data.decode("utf-8", "replace"))


def at_path(text: str) -> list[File]:
    """The installed counterparts of the files of libraries that a pasted traceback or warning names."""
    found: dict[str, File] = {}
    for line in text.replace("\\", "/").splitlines():
        for mark in ("site-packages/", "dist-packages/"):
            library, _, rest = line.partition(mark)[2].partition("/")
            end = rest.find(".py")
            home = home_of(library) if library in LIBRARIES and end > 0 else None
            if home is not None:
                path = os.path.join(home, *rest[: end + 3].split("/"))
                if ".." not in rest[:end] and os.path.isfile(path):
                    content = _read(path).decode("utf-8", "replace")
                    found[path] = File(library, path, _module(library, path), content)
    return list(found.values())
