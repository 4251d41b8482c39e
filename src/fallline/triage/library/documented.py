"""What an installed library documents of an argument, an option, a function or a class that a question names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fallline.triage.library.installed import LIBRARIES, File, holding, named_in, version_of

__all__ = ["Entry", "documented", "names_in", "owners_of", "plainly"]

# what people write of an API and not of anything else: words joined by `_`, two capitals, a call, an assignment, backticks
_NAME = re.compile(
    r"`(?:[\w.]+\.)?([A-Za-z_]\w{2,})(?:\([^`]*\)|=[^`]*)?`|\b(?:[\w]+\.)*([A-Za-z]\w*_\w*[a-z_]\w*|[A-Z][a-z]+(?:[A-Z][A-Za-z]*)+|[a-z]+[A-Z]\w+)\b"
    r"|\b([a-z_]{4,})\s?=\s?(?:True|False|None|[\d.]+|[\"'])"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*])")
_MARKUP = re.compile(
    r":\w+:`~?([^`<]*?)(?:\s*<[^>]*>)?`|``([^`]*)``|\[`?([^\]`]+)`?\](?:\([^)]*\))?|\*([^*\s][^*]*)\*"
)
_LONGEST = 340
_SENTENCES = 3
_FILES = 3  # that are parsed, at most
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a library says of a name."""

    name: str
    library: str
    owner: str  # the class or function whose argument it is; empty for a class or function itself
    default: str | None  # as written; None where it must be given or is not an argument
    text: str
    module: str
    value: bool = False  # a value of the option `owner`

    @property
    def version(self) -> str:
        return version_of(self.library)


def names_in(text: str) -> list[str]:
    """The names in a text that can be those of an API, each once, in their order."""
    found = ("".join(groups) for groups in _NAME.findall(text))
    return [n for n in dict.fromkeys(found) if len(n) > 3 and not n.startswith("_")]


def documented(name: str, around: str) -> Entry | None:
    """What the installed libraries say of a name, best what the question names: its library, and the function it belongs to."""
    libraries = [lib for lib in named_in(around) if lib != "torch"]
    low = around.lower()
    entries = [
        entry
        for file in _files(name, libraries)
        for entry in _entries(ast.parse(file.text), name, file)
        if entry.text
    ]
    return min(entries, key=lambda e: _rank(e, libraries, low), default=None) or _a_value(
        name, libraries
    )


def _a_value(name: str, libraries: list[str]) -> Entry | None:
    """The option one of whose values a name is."""
    quoted = [f'"{name}"', f"'{name}'"]
    found = (f for _, f in holding(quoted, libraries) if "metadata=" in f.text)
    for file in list(found)[:_FILES]:
        for owner, node in owners_of(ast.parse(file.text)):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
                    default, told = _field(field.value)
                    if re.search(rf"['\"]{name}['\"]", told):
                        option = f"{getattr(field.target, 'id', '')}` of `{owner}"
                        return Entry(name, file.library, option, default, told, file.module, True)
    return None


def _rank(entry: Entry, libraries: list[str], low: str) -> tuple[bool, bool, bool, int, int]:
    named = bool(entry.owner) and entry.owner.rpartition(".")[2].lower() in low
    private = entry.owner.startswith("_") or "._" in f".{entry.module}.{entry.owner}"
    return (
        not named,
        bool(libraries) and entry.library not in libraries,
        private,
        LIBRARIES.index(entry.library),
        entry.module.count("."),
    )


def _files(name: str, libraries: Sequence[str]) -> list[File]:
    """The few files that most probably document a name: those where it is defined, has an entry or a default."""
    told = re.compile(
        rf"^[ \t]*(?:(?:def|class) {name}\b|{name}\s?(?:\(.*\)\s?)?:|{name}\s?[:=]|:param {name}:)",
        re.M,
    )
    found = [f for _, f in holding([name], libraries) if told.search(f.text)]
    if not found and libraries:
        found = [f for _, f in holding([name]) if told.search(f.text)]

    def rank(file: File) -> tuple[bool, int, int]:
        defines = re.search(rf"^(?:def|class) {name}\b", file.text, re.M) is not None
        return not defines, LIBRARIES.index(file.library), -len(told.findall(file.text))

    return sorted(found, key=rank)[:_FILES]


def _entries(tree: ast.AST, name: str, file: File) -> Iterator[Entry]:
    """What a module says of a name, as a definition, as an argument and as a field."""
    for owner, node in owners_of(tree):
        if node.name == name:
            text = _first(ast.get_docstring(node) or "")
            yield Entry(name, file.library, "", None, text, f"{file.module}.{owner}")
        docs = ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and getattr(field.target, "id", "") == name:
                    default, help_text = _field(field.value)
                    text = help_text or _entry(docs, name)
                    yield Entry(name, file.library, owner, default, text, file.module)
            init = next(
                (f for f in node.body if isinstance(f, _FUNCTIONS) and f.name == "__init__"), None
            )
            if init is not None and (given := _default(init, name)):
                text = _entry(docs, name) or _entry(ast.get_docstring(init) or "", name)
                yield Entry(name, file.library, owner, given[0], text, file.module)
        elif node.name != "__init__" and (given := _default(node, name)):
            yield Entry(name, file.library, owner, given[0], _entry(docs, name), file.module)


def owners_of(
    tree: ast.AST, inside: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """The classes, functions and methods of a module, each with its name."""
    for node in getattr(tree, "body", []):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield f"{inside}{node.name}", node
            case ast.ClassDef():
                yield f"{inside}{node.name}", node
                yield from owners_of(node, f"{inside}{node.name}.")
            case ast.If() | ast.Try():
                yield from owners_of(node, inside)


def _default(
    function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> tuple[str | None] | None:
    """The default of an argument as written, None in it where it has none; None where there is no such argument."""
    args = function.args
    by_place = [*args.posonlyargs, *args.args]
    without: list[ast.expr | None] = [None] * (len(by_place) - len(args.defaults))
    pairs = [
        *zip(by_place, [*without, *args.defaults], strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        if argument.arg == name:
            return (ast.unparse(default) if default is not None else None,)
    return None


def _field(value: ast.expr | None) -> tuple[str | None, str]:
    """The default of a dataclass field, and the help text in its metadata."""
    if not isinstance(value, ast.Call):
        return (ast.unparse(value) if value is not None else None), ""
    default, said = None, ""
    for keyword in value.keywords:
        if keyword.arg == "default":
            default = ast.unparse(keyword.value)
        if isinstance(keyword.value, ast.Dict):
            for key, text in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "help":
                    said = "".join(
                        n.value
                        for n in ast.walk(text)
                        if isinstance(n, ast.Constant) and isinstance(n.value, str)
                    )
    return default, _short(said)


def _entry(docs: str, name: str) -> str:
    """The entry of an argument in a docstring: what follows its name, and the lines that are indented below it."""
    lines = docs.splitlines()
    head = re.compile(rf"\s*(?:[-*] |:param )?[`*]*{name}[`*]*\s*(?:\([^\n]*?\)\s*)?:\s*(.*)")
    for n, line in enumerate(lines):
        match = head.match(line)
        if match is None:
            continue
        margin = len(line) - len(line.lstrip())
        said = [match[1]]
        for below in lines[n + 1 :]:
            if below.strip() and len(below) - len(below.lstrip()) <= margin:
                break
            if not below.strip() and "".join(said).strip():
                break
            said.append(below.strip())
        # `x (bool, optional): ...` matched up to its first colon; a type that follows is not text
        return _short(" ".join(said))
    return ""


def _first(docs: str) -> str:
    """The first paragraph of a docstring that says something."""
    paragraphs = (" ".join(p.split()) for p in docs.split("\n\n"))
    told = (
        p
        for p in paragraphs
        if len(p.split()) > 3 and "->" not in p and not p.startswith(("..", 'r"'))
    )
    return _short(next(told, ""))


def plainly(text: str) -> str:
    """Text without the markup of documentation: names in backticks."""
    return _MARKUP.sub(lambda m: f"`{next(filter(None, m.groups()), '')}`", " ".join(text.split()))


def _short(text: str) -> str:
    plain = plainly(text)
    kept = ""
    for sentence in _SENTENCE.split(plain)[:_SENTENCES]:
        if kept and len(kept) + len(sentence) > _LONGEST:
            break
        kept = f"{kept} {sentence}".strip()
    if len(kept) > 2 * _LONGEST:
        kept = kept[: 2 * _LONGEST].rpartition(" ")[0] + " …"
    return kept
