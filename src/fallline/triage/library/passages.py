"""What the installed libraries document, paragraph by paragraph: docstrings and the entries of their arguments, as a table that is searched by words.

The sources are read as text, without parsing them: a docstring is what stands in triple quotes below a `class` or `def`. Making the table takes some seconds, once for each set of installed versions.
"""

from __future__ import annotations

import math
import os
import re
import textwrap
from array import array
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from fallline.triage.kept import kept
from fallline.triage.library.documented import plainly
from fallline.triage.library.installed import File, holding, home_of, version_of
from fallline.triage.words import root, tokens_each

__all__ = ["Passage", "passages"]

# what people train with; the others would be found by accident
_READ = ("torch", "transformers", "lightning", "accelerate", "peft", "trl")
_HOMES = {
    "torch": r"torch\.(?:nn|optim|utils\.(?:data|checkpoint)|distributed(?:\.(?:fsdp|_composable|checkpoint|algorithms|optim|tensor|device_mesh|distributed_c10d|elastic))?|amp|autograd|cuda|func|compiler|backends|_tensor|_tensor_docs|_torch_docs|serialization|random|hub|profiler|functional)\b",
    "transformers": r"transformers\.(?:trainer\w*|training_args\w*|optimization|data\.data_collator|modeling_utils|trainer_callback|configuration_utils|tokenization_utils_base|integrations\.(?:peft|deepspeed|fsdp))\b",
    "lightning": r"lightning\.pytorch\b",
    "accelerate": r"accelerate\b(?!\.(?:test_utils|commands))",
    "peft": r"peft\.(?:peft_model|config|helpers|mapping|mixed_model|utils|tuners\.(?:lora|tuners_utils|prompt_tuning|prefix_tuning|p_tuning|ia3|adalora))\b",
    "trl": r"trl\.(?:trainer|data_utils|rewards)\b",
}
_OPENED = re.compile(
    r'^([ \t]*)(?:async )?(def|class) (\w+)|:\s*(?:#[^\n]*)?\n\s*[rRuU]?"""|^add_docstr\(\s*(?:torch\.)?([\w.]+),|^\s*[rR]"""\n',
    re.M,
)
_QUOTES = '"""'
_ENTRIES = re.compile(
    r"(?i)^\s*(?:args|arguments|parameters|keyword arg\w*|kwargs|attributes|inputs?|shape|> parameters.*)\s*:?:?\s*$"
)
_HEAD = re.compile(r"(?i)^\s*(?:returns?|yields?|raises?|references?|see also|todo)\s*:{1,2}\s*$")
_EXAMPLE = re.compile(
    r"(?i)^\s*(?:examples?|usage|code example|sample code)\b.{0,40}:{1,2}\s*$|^\s*(?:>>>|\.\. (?:code|math|testcode|doctest|image|figure|raw)|```|\$)"
)
_NOTE = re.compile(
    r"^\s*\.\. (?:note|warning|tip|important|attention)::\s*|^\s*(?:\.\. (?:version\w*|deprecated|seealso|_\w+|rubric|currentmodule|autosummary)|<Tip\b|</Tip>).*$"
)
_ENTRY = re.compile(
    r"^(\s*)(?:[-*] |:param )?[`*]{0,2}([A-Za-z_]\w*)[`*]{0,2}\s*(?:\((?:[^()\n]|\([^()]*\))*\))?\s*(?::|--| – )\s*(.*)$"
)
_FEWEST_WORDS = 6
_LONGEST = 1200  # characters of a paragraph


class Passage(NamedTuple):
    """One paragraph: of which name of which library, of which of its arguments, and what it says."""

    library: str
    owner: str
    argument: str
    says: str

    @property
    def version(self) -> str:
        return version_of(self.library)

    @property
    def name(self) -> str:
        return self.argument or self.owner.rpartition(".")[2]


class Table(NamedTuple):
    """All passages, and by word those that hold it."""

    rows: list[tuple[str, str, str, str]]
    holding: dict[str, bytes]
    weight: dict[str, float]
    length: array[float]  # of each passage: the weight of its words
    named: dict[str, bytes]  # by the name of what they document, in lower case

    def passage(self, n: int) -> Passage:
        return Passage(*self.rows[n])


@cache
def passages() -> Table:
    rows, held, weight, length, named = kept("passages", _made, _state())
    return Table(rows, held, weight, array("f", length), named)


def _state() -> str:
    """What the table rests on: the installed versions, and how they are read."""
    own = os.stat(__file__)
    versions = (f"{library} {version_of(library)} {home_of(library)}" for library in _READ)
    return " ".join([*versions, f"{own.st_size} {own.st_mtime_ns}"])


def _made() -> Any:
    rows = list(dict.fromkeys(row for library in _READ for row in _of_library(library)))
    words = tokens_each(f"{owner} {argument} {says}" for _, owner, argument, says in rows)
    held: dict[str, array[int]] = {}
    named: dict[str, array[int]] = {}
    for n, said in enumerate(words):
        for word in {root(w) for w in said}:
            held.setdefault(word, array("I")).append(n)
        row = Passage(*rows[n])
        for name in {
            row.name.lower(),
            row.owner.rpartition(".")[2].lower(),
            row.owner.partition(".")[0].lower(),
        }:
            named.setdefault(name, array("I")).append(n)
    weight = {word: math.log(len(rows) / len(where)) for word, where in held.items()}
    length = array("f", (sum(weight[w] for w in {root(w) for w in said}) for said in words))
    return (
        rows,
        {word: where.tobytes() for word, where in held.items()},
        weight,
        length.tobytes(),
        {name: where.tobytes() for name, where in named.items()},
    )


def _of_library(library: str) -> Iterator[tuple[str, str, str, str]]:
    where = re.compile(_HOMES[library])
    for _, file in holding([_QUOTES], [library]):
        if where.match(file.module):
            for owner, docs in _documented(file):
                for argument, says in _paragraphs(docs):
                    yield library, owner, argument, says


def _documented(file: File) -> Iterator[tuple[str, str]]:
    """Each public class, function and method of a file with its docstring."""
    above: list[tuple[int, str, bool]] = []  # indentation, name, whether a class
    owner, at = "", 0
    for match in _OPENED.finditer(file.text):
        if match.start() < at:
            continue
        if match[3]:
            indent = len(match[1].expandtabs())
            above = [one for one in above if one[0] < indent]
            inside = all(is_class for _, _, is_class in above)
            public = match[3] == "__init__" or match[3][0] != "_"
            names = [name for _, name, _ in above] + ([match[3]] if match[3] != "__init__" else [])
            owner = ".".join(names) if inside and public and all(n[0] != "_" for n in names) else ""
            above.append((indent, match[3], match[2] == "class"))
        elif match[4]:
            owner = match[4].replace("_C.TensorBase.", "Tensor.").removeprefix("_C.")
        else:
            end = file.text.find(_QUOTES, match.end())
            if end < 0:
                return
            at = end + 3
            if owner:
                yield owner, file.text[match.end() : end]
            owner = ""


def _paragraphs(docs: str) -> Iterator[tuple[str, str]]:
    """The paragraphs of a docstring, and the entries of its arguments, each with the argument's name."""
    head, _, rest = docs.partition("\n")
    lines = [head.strip(), *textwrap.dedent(rest).splitlines(), ""]
    argument, said, entries, code = "", list[str](), -1, -1
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if code >= 0 and (not line.strip() or indent > code):
            continue
        code = -1
        entry = (
            _ENTRY.match(line) if entries >= 0 and (entries == 99 or indent == entries) else None
        )
        if (
            not line.strip()
            or entry
            or _ENTRIES.match(line)
            or _HEAD.match(line)
            or _EXAMPLE.match(line)
            or _NOTE.match(line)
        ):
            yield from _said(argument, said)
            said = []
        if _ENTRIES.match(line):
            entries, argument = 99, ""  # the first entry shows how far they are indented
        elif _HEAD.match(line):
            entries, argument = -1, ""
        elif _EXAMPLE.match(line):
            code, argument = indent, ""
        elif entry:
            entries, argument = indent, entry[2]
            said = [entry[3]]
        elif entries >= 0 and line.lstrip().startswith(">"):
            argument, said = "", []  # the head of a group of entries
        elif line.strip():
            if entries not in (-1, 99) and indent <= entries and not _NOTE.match(line):
                entries, argument = -1, ""
            words = _NOTE.sub("", line).strip()
            said += [words] if words else []
            if words.endswith("::"):
                code = indent
    yield from _said(argument, said)


def _said(argument: str, said: list[str]) -> Iterator[tuple[str, str]]:
    text = " ".join(" ".join(said).split())
    if len(text.split()) >= (_FEWEST_WORDS if not argument else 3) and "->" not in text[:80]:
        yield argument, plainly(text[:_LONGEST]).replace("::", ":")
