"""What is known of one public script."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Break", "Real", "Swap"]


@dataclass(frozen=True)
class Swap:
    """Words of a script that are replaced; on the same lines."""

    old: str
    new: str
    path: str = ""  # of another file than the script


@dataclass(frozen=True)
class Break:
    """A mistake that is put into a script."""

    what: str
    swaps: tuple[Swap, ...]
    codes: tuple[str, ...]  # any of these tells it
    at: str  # part of the one line that it has to point at
    path: str = ""  # of the file with that line; where the first swap is, by default


@dataclass(frozen=True)
class Real:
    """A script of a public repository."""

    name: str
    repo: str
    script: str
    take: tuple[str, ...]  # what of the repository it needs
    args: str = ""
    swaps: tuple[Swap, ...] = ()
    data: tuple[str, ...] = ()  # writers in data.py
    after: str = ""  # the line after which torch is there, where that is not plain to see
    path: tuple[str, ...] = ()  # folders of the repository that Python looks for modules in
    stubs: tuple[str, ...] = ()  # folders in stubs/: packages that are not to be had
    module: str = ""  # run with `-m`, from the root of the repository
    judged: dict[str, str] = field(default_factory=dict)  # by code, and why
