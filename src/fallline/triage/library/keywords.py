"""A keyword that a function of the installed version does not take (any more): what it takes instead, from its signature."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from fallline.triage.library.documented import owners_of
from fallline.triage.library.installed import LIBRARIES, holding, named_in, version_of

__all__ = ["Refused", "refused_keyword"]

_REFUSED = re.compile(r"(?:(\w+)\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'")


@dataclass(frozen=True, slots=True)
class Refused:
    """A keyword, who does not take it, and what is nearest to it among what is taken."""

    keyword: str
    function: str
    library: str
    near: tuple[str, ...]
    also: tuple[str, ...]  # others of the same class or module that take this keyword
    takes: bool  # the installed version does take it: then the one that raised is older or newer

    @property
    def version(self) -> str:
        return version_of(self.library)


def refused_keyword(text: str) -> Refused | None:
    """What the installed libraries say of a pasted "got an unexpected keyword argument"; None where no such function is installed."""
    match = _REFUSED.search(text)
    if match is None:
        return None
    owner, function, keyword = match.groups()
    name = owner or function
    definition = f"class {name}" if owner or name[:1].isupper() else f"def {name}("
    libraries = named_in(text)
    found = [f for _, f in holding([definition], libraries)] or [
        f for _, f in holding([definition])
    ]
    found.sort(key=lambda file: (LIBRARIES.index(file.library), len(file.module)))
    for file in found[:4]:
        taken: dict[str, list[str]] = {}
        for path, node in owners_of(ast.parse(file.text)):
            if isinstance(node, ast.ClassDef):
                fields = [
                    getattr(f.target, "id", "") for f in node.body if isinstance(f, ast.AnnAssign)
                ]
                taken.setdefault(path, []).extend(fields)
            else:
                a = node.args
                every = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs) if x.arg != "self"]
                taken[path.removesuffix(".__init__")] = every
                if a.kwarg is not None and path.removesuffix(".__init__") in (
                    name,
                    f"{owner}.{function}",
                ):
                    return None
        asked = name if function in ("__init__", name) else f"{name}.{function}"
        if asked not in taken:
            continue
        from difflib import get_close_matches  # only for a keyword that was refused

        near = get_close_matches(keyword, taken[asked], 3, 0.6)
        also = [
            path
            for path, arguments in taken.items()
            if keyword in arguments and path != asked and "._" not in f".{path}"
        ]
        takes = keyword in taken[asked]
        return Refused(keyword, asked, file.library, tuple(near), tuple(also[:2]), takes)
    return None
