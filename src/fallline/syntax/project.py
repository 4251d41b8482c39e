"""The files given together: which module name each has, and where a dotted name is defined."""

from __future__ import annotations

import ast
import gc
import os
import re
from collections.abc import Iterable, Mapping
from itertools import islice

from fallline.syntax.module import MOST_STARS, Module
from fallline.syntax.source import Source, UnreadableError

__all__ = ["Project", "Question"]

# Files larger than this are data or generated; they are not followed through imports.
_LARGEST = 4_000_000
_BESIDE = 64  # how many files of one folder are looked at
_WHOLE = 3_000  # how many files of a project are searched for a word
_CODE = (".py", ".ipynb")
# where people write down how they run a program
_SCRIPTS = tuple(".sh .md .rst .yaml .yml .json .toml .cfg .ini .bash .slurm .sbatch".split())
_LONGEST = 100_000  # a longer one is data
_MOST_SEARCHED = (
    48_000_000  # bytes of files kept because they are searched for one word after the other
)
# Trees take about a hundred times the memory of their text; the oldest are dropped and parsed again when asked for.
_MOST_TEXT = 2_500_000
_COLLECT_AFTER = 6_000_000
# What these do is known, also where their own source lies next to the project's.
_FOREIGN = frozenset(
    "fallline torch torchvision numpy lightning pytorch_lightning accelerate deepspeed transformers tqdm apex builtins typing os sys re "
    "math time json random argparse collections functools itertools contextlib copy pathlib logging".split()
)


# A name and the folder it is looked for from: what a file's reading rests on, beside its own text.
Question = tuple[str, str]


class Project:
    """Parsed files on demand. Nothing is imported or executed; a missing file is simply not found."""

    def __init__(self, roots: Iterable[str] = (), given: Mapping[str, bytes] | None = None) -> None:
        """`given` holds the content of files that differ from what is on disk, such as a fix being tried."""
        self.roots = [os.path.abspath(r) for r in roots]
        self._given = {os.path.abspath(path): data for path, data in (given or {}).items()}
        self._modules: dict[str, Module | None] = {}
        self._text = 0
        self._dropped = 0
        self._found: dict[tuple[str, str], str | None] = {}
        self._folders: dict[str, str] = {}
        self._meant: dict[tuple[str, str], tuple[tuple[Module, ast.AST] | None, set[Question]]] = {}
        self._beside: dict[tuple[str, bytes], tuple[str, ...]] = {}
        self._below: dict[str, dict[tuple[str, ...], list[str]]] = {}
        self._holds: dict[str, bool] = {}
        self._short: dict[str, list[str]] = {}
        self._searched: dict[str, bytes] = {}
        self._room = _MOST_SEARCHED
        self._asked: dict[str, set[Question]] = {}
        self._new: dict[str, set[Question]] = {}

    def add(self, source: Source, tree: ast.Module | None = None) -> Module:
        """Parse one file and keep it. Raises `UnreadableError`."""
        path = os.path.abspath(source.path)
        module = Module(
            source, tree if tree is not None else source.parse(), self, self.name_of(path)
        )
        known = self._modules.pop(path, None)
        if known is not None:
            self._meant.clear()  # what was found there is no part of the new tree
        self._text += len(source.text) - (len(known.source.text) if known is not None else 0)
        self._modules[path] = module
        return module

    def trim(self) -> None:
        """Drop the oldest trees when there are many. Only between files: what is being read must stay whole."""
        for old in list(self._modules):
            if self._text <= _MOST_TEXT:
                break
            dropped = self._modules.pop(old)
            self._meant.clear()
            if dropped is not None:
                self._text -= len(dropped.source.text)
                self._dropped += len(dropped.source.text)
                dropped.index.release()
        if self._dropped > _COLLECT_AFTER:
            # what was executed on paper still holds on to some trees in circles
            self._dropped = 0
            gc.collect()

    def name_of(self, path: str) -> str:
        """The dotted name of a file, counted from the outermost folder that is a package, or from a root."""
        stem = path[: -len(".py")] if path.endswith(".py") else path
        parts = [os.path.basename(stem)]
        folder = os.path.dirname(path)
        while os.path.isfile(os.path.join(folder, "__init__.py")):
            parts.append(os.path.basename(folder))
            folder = os.path.dirname(folder)
        if parts[0] == "__init__":
            parts = parts[1:] or parts
        return ".".join(reversed(parts))

    def module_at(self, path: str) -> Module | None:
        """The module of a file, parsed once; None where it cannot be read."""
        full = os.path.abspath(path)
        if full in self._modules:
            self._modules[full] = self._modules.pop(full)  # asked for last: dropped last
        else:
            self._modules[full] = None
            try:
                if full in self._given or os.path.getsize(full) <= _LARGEST:
                    self.add(Source.from_bytes(self._shown(full), self.data(full)))
            except (OSError, UnreadableError, ValueError):
                pass
        return self._modules[full]

    def data(self, path: str) -> bytes:
        """The content of a file. Raises OSError."""
        given = self._given.get(os.path.abspath(path)) if self._given else None
        return _bytes_of(path) if given is None else given

    def _shown(self, full: str) -> str:
        """Paths are shown as the user gave their root: relative below the working directory."""
        relative = os.path.relpath(full)
        return full if relative.startswith("..") else relative

    def find_module(self, dotted: str, near: Module) -> Module | None:
        """The project file that `import dotted` in `near` means, if it is one of the project's."""
        asked: set[Question] = set()
        module = self._asking(dotted, near, asked)
        self._note(near, asked)
        return module

    def _asking(self, dotted: str, near: Module, asked: set[Question]) -> Module | None:
        if dotted.partition(".")[0] in _FOREIGN:
            return None
        question = (dotted, self._folder(near))
        asked.add(question)
        path = self._path(question)
        return self.module_at(path) if path else None

    def _path(self, question: Question) -> str | None:
        if question not in self._found:
            self._found[question] = self._search(*question)
        return self._found[question]

    # -- what rests on what --------------------------------------------------------------------------------------

    def _note(self, near: Module, questions: set[Question]) -> None:
        known = self._asked.setdefault(near.path, set())
        if not questions <= known:
            full = os.path.abspath(near.path)
            self._new.setdefault(full, set()).update(questions - known)
            known |= questions

    def take_asked(self) -> dict[str, set[Question]]:
        """What each file asked of the project, by its full path, since this was asked last.

        What is found out about a file is kept with it and used for every other that leads there. So a reading rests on
        all that its file asked, all that the files in the answers asked, and so on.
        """
        taken, self._new = self._new, {}
        return taken

    def answer(self, question: Question) -> tuple[str, ...]:
        """The files that a question leads to."""
        name, folder = question
        if name.startswith("--"):
            return self._writing(folder, os.fsencode(name[2:]))
        if name.startswith("**"):
            return self._spelling(folder, os.fsencode(name[2:])) or ()
        if name.startswith("*"):
            return self._holding(folder, os.fsencode(name[1:]))
        path = self._path(question)
        return (path,) if path is not None else ()

    def _folder(self, module: Module) -> str:
        found = self._folders.get(module.path)
        if found is None:
            found = self._folders[module.path] = os.path.dirname(os.path.abspath(module.path))
        return found

    def may_hold(self, dotted: str, near: Module, tokens: tuple[bytes, ...]) -> bool:
        """Whether the file a dotted name leads to is worth parsing: it holds one of the tokens, or passes names on."""
        if dotted.partition(".")[0] in _FOREIGN:
            return False
        folder = self._folder(near)
        for name in (dotted, dotted.rpartition(".")[0]):
            if not name:
                continue
            self._note(near, {(name, folder)})
            path = self._path((name, folder))
            if path is not None:
                if path not in self._holds:
                    self._holds[path] = path.endswith("__init__.py") or self._has(path, tokens)
                return self._holds[path]
        return True

    def _has(self, path: str, tokens: tuple[bytes, ...]) -> bool:
        data = self._searched.get(path)
        if data is None:
            try:
                data = self.data(path)
            except OSError:
                return False
            if len(data) <= self._room:
                self._room -= len(data)
                self._searched[path] = data
        return any(token in data for token in tokens)

    def _search(self, dotted: str, folder: str) -> str | None:
        relative = dotted.replace(".", os.sep)
        bases = [folder]
        up = folder
        # up to the root of the project, or to the folder that holds the file's own package
        while any(up.startswith(r + os.sep) for r in self.roots) or os.path.isfile(
            os.path.join(up, "__init__.py")
        ):
            up = os.path.dirname(up)
            bases.append(up)
        bases += self.roots
        # `sys.path.insert(0, "../lib")`: a folder of sources that scripts put on their path
        for base in [*bases, *(os.path.join(b, name) for b in bases for name in ("src", "lib"))]:
            for candidate in (
                os.path.join(base, relative + ".py"),
                os.path.join(base, relative, "__init__.py"),
            ):
                if os.path.isfile(candidate):
                    return candidate
        return None

    def beside(self, module: Module, token: bytes) -> list[Module]:
        """The other files of the same folder that hold `token`: scripts that share files without importing each other."""
        folder = self._folder(module)
        self._note(module, {("*" + os.fsdecode(token), folder)})
        here = os.path.abspath(module.path)
        others = (self.module_at(path) for path in self._holding(folder, token) if path != here)
        return [other for other in others if other is not None]

    def _holding(self, folder: str, token: bytes) -> tuple[str, ...]:
        key = (folder, token)
        if key not in self._beside:
            try:
                names = sorted(n for n in os.listdir(folder) if n.endswith(".py"))[:_BESIDE]
            except OSError:
                names = []
            paths = (os.path.join(folder, name) for name in names)
            self._beside[key] = tuple(path for path in paths if self._is_small_with(path, token))
        return self._beside[key]

    def spells(self, module: Module, word: bytes) -> bool:
        """Whether a word is anywhere in the files of the project: what is spelled nowhere, none of them does."""
        root = self._root(module) or self._folder(module)
        self._note(module, {("**" + os.fsdecode(word), root)})
        holding = self._spelling(root, word)
        return holding is None or bool(holding) or word in module.source.text.encode()

    def _root(self, module: Module) -> str | None:
        here = os.path.abspath(module.path)
        return next((r for r in self.roots if here.startswith(r + os.sep)), None)

    def writes(self, module: Module, word: str, code: bool) -> list[str]:
        """The texts of the project that hold a word: how people run it, and its configurations; with `code`, also its files."""
        root = self._root(module)
        if root is None:
            return []
        self._note(module, {("--" + word, root)})
        found = self._writing(root, os.fsencode(word))
        if code:
            self._note(module, {("**" + word, root)})
            found += self._spelling(root, os.fsencode(word)) or ()
        return [self.data(path).decode(errors="replace") for path in found]

    def _writing(self, root: str, word: bytes) -> tuple[str, ...]:
        key = (root, b"--" + word)
        if key not in self._beside:
            words = tuple({word, word.replace(b"_", b"-")})
            self._beside[key] = tuple(p for p in self._scripts(root) if self._has(p, words))
        return self._beside[key]

    def _scripts(self, root: str) -> list[str]:
        if root not in self._short:
            paths = self._files(root, _SCRIPTS)
            self._short[root] = [path for path in paths if os.path.getsize(path) <= _LONGEST]
        return self._short[root]

    def _files(self, root: str, endings: tuple[str, ...]) -> list[str]:
        """The files below a folder, a few more than are searched where there are many."""
        if root not in self._below:
            every = (
                os.path.join(folder, name)
                for folder, _, names in os.walk(root)
                if os.sep + "." not in folder[len(root) :]  # `.git`, and what fallline keeps
                for name in sorted(names)
                if name.endswith(_CODE + _SCRIPTS) and os.path.isfile(os.path.join(folder, name))
            )
            paths = list(islice(every, 4 * _WHOLE))
            self._below[root] = {
                kind: [path for path in paths if path.endswith(kind)][: _WHOLE + 1]
                for kind in (_CODE, _SCRIPTS)
            }
        return self._below[root][endings]

    def imports(self, module: Module) -> bool:
        """Whether another file of the project imports this one, or may."""
        root = self._root(module)
        if root is None:
            return False
        stem = os.fsencode(os.path.splitext(os.path.basename(module.path))[0])
        self._note(module, {("**" + os.fsdecode(stem), root)})
        holding = self._spelling(root, stem)
        if holding is None:
            return True
        here = os.path.abspath(module.path)
        line = re.compile(rb"(?m)^[ \t]*(?:from|import)\b.*\b" + re.escape(stem) + rb"\b")
        return any(line.search(self.data(path)) for path in holding if path != here)

    def naming(self, module: Module, word: str) -> list[tuple[str, str]]:
        """The other files of the project that hold a word, and their texts."""
        root = self._root(module)
        if root is None:
            return []
        self._note(module, {("**" + word, root)})
        here = os.path.abspath(module.path)
        paths = [p for p in self._spelling(root, os.fsencode(word)) or () if p != here]
        return [(path, self.data(path).decode(errors="replace")) for path in paths]

    def _spelling(self, root: str, word: bytes) -> tuple[str, ...] | None:
        """The files below a folder that hold a word; None where there are too many files to tell."""
        key = (root, b"**" + word)
        if key not in self._beside:
            paths = self._files(root, _CODE)
            if len(paths) > _WHOLE:
                return None
            self._beside[key] = tuple(path for path in paths if self._has(path, (word,)))
        return self._beside[key]

    def _is_small_with(self, path: str, token: bytes) -> bool:
        try:
            return os.path.getsize(path) <= _LARGEST and token in _bytes_of(path)
        except OSError:
            return False

    def find(self, dotted: str, near: Module) -> tuple[Module, ast.AST] | None:
        """The function, class or assignment a dotted name means: follows re-exports a few times."""
        key = (dotted, self._folder(near))
        if key not in self._meant:
            asked: set[Question] = set()
            found = self._find(dotted, near, frozenset(), asked)
            self._meant[key] = (
                found,
                asked,
            )  # last: parsing on the way may have forgotten everything
        found, asked = self._meant[key]
        self._note(near, asked)
        return found

    def _find(
        self, dotted: str, near: Module, passed: frozenset[str], asked: set[Question]
    ) -> tuple[Module, ast.AST] | None:
        """`passed` are files already searched: two files may import everything from each other."""
        for _ in range(6):
            head, _, last = dotted.rpartition(".")
            if not head:
                return None
            module = self._asking(head, near, asked)
            if module is None:
                # perhaps Class.method: the class is one level up
                outer, _, cls = head.rpartition(".")
                home = self._asking(outer, near, asked) if outer else None
                if home is not None and f"{cls}.{last}" in home.functions:
                    return home, home.functions[f"{cls}.{last}"]
                return None
            if last in module.functions:
                return module, module.functions[last]
            if last in module.classes:
                return module, module.classes[last]
            if last in module.imports:
                dotted, near = module.imports[last], module
                continue
            if module.path in passed or len(passed) + len(module.star_imports) > MOST_STARS:
                return None
            for star in module.star_imports:
                found = self._find(f"{star}.{last}", module, passed | {module.path}, asked)
                if found is not None:
                    return found
            bound = module.bindings(last, None)
            return (module, bound[0]) if len(bound) == 1 else None
        return None

    def find_class(
        self, dotted: str, near: Module | None = None
    ) -> tuple[Module, ast.ClassDef] | None:
        anchor = near or next((m for m in self._modules.values() if m is not None), None)
        found = self.find(dotted, anchor) if anchor is not None else None
        return (
            (found[0], found[1])
            if found is not None and isinstance(found[1], ast.ClassDef)
            else None
        )


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:  # in half the time of `pathlib`
        return file.read()
