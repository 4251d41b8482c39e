"""A question as people paste it, taken apart once: which lines are prose, code, a traceback, a log, a list of versions, a configuration, or the form of an issue tracker.

All that reads a question reads the part it needs: what is asked is in the prose, numbers are in the log, and versions are no evidence of anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from fallline.triage.logs import log_lines
from fallline.triage.pasted import parsed, statements
from fallline.triage.unwrapped import unwrapped

__all__ = ["LONGEST", "Post"]

LONGEST = 20_000  # characters of a question that are looked at
_RANK = re.compile(r"^\s*\[?(?:rank|default)\s?\d+\]?:\s?")
_FENCE = re.compile(r"^\s*(?:>\s*)?(?:`{3,}|~{3,})\s*(?P<language>[\w+-]*)\s*$")
_PYTHON = frozenset({"py", "python", "python3", "ipython"})
_FOREIGN = frozenset(
    "javascript js jsx ts tsx typescript java php sql html css ruby rb swift kotlin go rust c cpp c++ cuda cs csharp r julia scala lua matlab yaml yml json toml ini dockerfile bash sh shell console diff".split()
)
_FRAME = re.compile(
    r'\s*(?:File "[^"\n]+", line \d+|Traceback \(most recent|During handling of|The above exception|Original Traceback|warnings\.warn\(|\w*(?:Error|Exception)\s{3,}Traceback|<ipython-input|-+>\s*\d+ |[~/]\S+\.py in \w+|Cell In ?\[)'
)
_RAISED = re.compile(
    r"(?:[\w.]*(?:Error|Exception|Interrupt|SystemExit)|Killed|Segmentation fault)(?::|$|\s\()"
)
_BELOW = re.compile(r"\s+\S|\s*(?:-+>)?\s*\d+\s|\s*\^+\s*$|\s*$")
# what a program prints: bars of nvidia-smi, progress, time stamps, levels
_PRINTED = re.compile(
    r"\s*(?:[|+]\s*[-=|+]|\|.*\|\s*$|[-=*_#~]{5,}|.*\d+%\|.*\|\s*\d+/\d+|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|\d\d:\d\d:\d\d\b|\d\d/\d\d \d\d:\d\d:\d\d|\[?\s*(?:INFO|WARNING|ERROR|DEBUG)\b\s*[]:|]|\{['\"](?:loss|eval_|train_)|>>> |\$ )"
)
_VERSION = r"v?\d+(?:\.\d+)+\S*"
_LIBRARY = r"(?:py ?torch|torch\w*|cuda\w*|cudnn|python|transformers|accelerate|peft|trl|bitsandbytes|deepspeed|lightning|pytorch[ -]lightning|numpy|nccl|driver|os|platform|gcc|gpu\w*|nvidia\w*|ubuntu|mmcv|mmdet\w*|mmengine|torchvision|torchaudio|triton|xformers|flash[_-]attn|tokenizers|datasets|safetensors|huggingface[_-]hub|conda|pip)"
_ENVIRONMENT = re.compile(
    rf"(?i)\s*(?:[-*#•]+\s*)*(?:\[(?:pip3?|conda)\]\s|{_LIBRARY}\b[^:=?\n]{{0,40}}(?:==?|:)\s*\S|{_LIBRARY}(?:[ -]version)?\s+{_VERSION}\s*$|[a-z][\w.-]+\s*==\s*{_VERSION}|[a-z][\w.-]*\s{{2,}}{_VERSION}|package\s+version\s*$|is (?:cuda|xpu|xnnpack|debug build)\b[^?]*:|(?:libc|clang|cmake|build|cpu|architecture|model name|thread\(s\)|core\(s\)|vendor id|byte order|l1d|numa|flags|versions of relevant|collecting environment)\b[^.?!]*:|using (?:gpu|distributed or parallel)[^?:]*\?:|sys\.platform:|\S+ available: )"
)
_CONFIG = re.compile(
    r"\s*(?:--?[a-z][\w-]*(?:[ =]\S+)*\s*\\?\s*$|[A-Z_]+=\S+ .*\\?\s*$|(?:[A-Z_]+=\S+ )*(?:python3?|torchrun|accelerate launch|deepspeed)\b.*(?:\\|\.py\b.*)$|\"[\w./-]+\"\s*:\s*\S.*,?\s*$|[\w.-]+:\s*(?:\S{1,40})?\s*$)"
)
_FEWEST = 3  # lines of `key: value` that make a configuration
_FORM = re.compile(
    r"(?i)\s*(?:#{1,6}\s*(?:search before|bug|describe|description|describe the (?:bug|issue)|environment|your environment|context|additional|to reproduce|reproduc\w*|expected|current|actual|error messages?|what version|system info|versions?|who can help|information|tasks|checklist|prerequisite|minimal|are you willing|question)\b.{0,40}$|[-*]\s*\[[ xX]?\]\s|</?(?:details|summary|div|sup|sub|br|p|img)\b|!\[[^\]]*\]\([^)]*\)\s*$|<!--|-->|your issue may already|please search (?:on|the)|cc @|(?:[-*]\s*)?(?:installed using|are you planning to|is it a cpu or gpu|which example are you|link to code)[^?]*\?)"
)
_LINK = re.compile(r"!?\[([^\]\n]*)\]\(\s*\S[^)\n]*\)|https?://\S+")
_REPOSITORY = re.compile(r"(?:github|gitlab|huggingface)\.\w+/(?:docs/)?([\w.-]+(?:/[\w.-]+)?)")
_FEW_WORDS = 3  # a question of which less than this is left was only pasted
_CHAINED = re.compile(r"During handling of|The above exception|Original Traceback")


@dataclass(frozen=True)
class Post:
    """The lines of a question, and of which kind each is: prose, code, traceback, log, environment, config or form."""

    lines: tuple[str, ...]
    kinds: tuple[str, ...]

    @staticmethod
    @lru_cache(maxsize=4)
    def of(text: str) -> Post:
        lines = unwrapped(text[:LONGEST]).splitlines()
        return Post(tuple(lines), tuple(_kinds(lines)))

    def only(self, *kinds: str) -> str:
        """The lines of these kinds. Where others lay between them there is an empty line."""
        kept: list[str] = []
        for line, kind in zip(self.lines, self.kinds, strict=True):
            if kind in kinds:
                kept.append(line)
            elif kept and kept[-1]:
                kept.append("")
        return "\n".join(kept)

    @cached_property
    def prose(self) -> str:
        """What a person wrote, without links. All of it, without code, where that is nearly nothing."""
        left = _LINK.sub(lambda m: m[1] or " ", self.only("prose"))
        if len(re.findall(r"[^\W\d]{2,}", left)) >= _FEW_WORDS:
            return left
        return self.only("prose", "traceback", "log", "config", "environment", "form")

    @cached_property
    def repositories(self) -> str:
        """The projects that its links lead to: what it is about, though no word says so."""
        return " ".join(_REPOSITORY.findall(self.only("prose")))

    @cached_property
    def code(self) -> str:
        return "\n".join(self.blocks)

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """Each run of lines of code."""
        runs: list[list[str]] = [[]]
        for line, kind in zip(self.lines, self.kinds, strict=True):
            if kind == "code":
                runs[-1].append(line)
            elif runs[-1]:
                runs.append([])
        return tuple("\n".join(run) for run in runs if any(line.strip() for line in run))

    @cached_property
    def evidence(self) -> str:
        """All that says something of the problem: not the versions of what is installed, nor the form that was filled in. All of the text where that is everything."""
        left = self.only("prose", "code", "traceback", "log", "config", "fence")
        return left if left.strip() else "\n".join(self.lines)

    @cached_property
    def last_traceback(self) -> int:
        """Where in the evidence the last traceback begins, with those that Python chains to it; 0 where there are not several."""
        text = self.evidence
        begins = [m.start() for m in re.finditer(r"Traceback \(most recent call last\)", text)]
        for before, at in reversed(list(pairwise(begins))):
            if not _CHAINED.search(text[before:at]):
                return at
        return 0


def _kinds(lines: list[str]) -> list[str]:
    kinds = ["prose"] * len(lines)
    begin = 0
    fenced: list[tuple[int, int]] = []
    opened: tuple[int, str] | None = None
    for n, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        kinds[n] = "fence"
        if opened is None:
            fenced.append((begin, n))
            opened = (n + 1, fence["language"].lower())
        else:
            kinds[opened[0] : n] = _of_block(lines[opened[0] : n], opened[1])
            opened, begin = None, n + 1
    if opened is not None:
        kinds[opened[0] :] = _of_block(lines[opened[0] :], opened[1])
    else:
        fenced.append((begin, len(lines)))
    code = "code" in kinds
    for one, two in fenced:
        kinds[one:two] = _of_text(lines[one:two], code)
    return kinds


def _of_block(lines: list[str], language: str) -> list[str]:
    """A fenced block is code, unless most of it was printed by a program or lists settings."""
    known = _by_line(lines)
    named = sum(bool(k) for k in known)
    filled = sum(bool(line.strip()) for line in lines)
    if language in _FOREIGN and "traceback" not in known:
        return [kind or "config" for kind in known]
    printed = named == filled or (2 * named > filled and parsed("\n".join(lines)) is None)
    if "traceback" not in known and (language in _PYTHON or not printed):
        return ["code"] * len(lines)
    if "traceback" in known and not printed:
        return [kind or "code" for kind in known]
    if not named:
        return ["code"] * len(lines)
    most = max(set(known) - {""}, key=known.count)
    return [kind or most for kind in known]


def _of_text(lines: list[str], has_code: bool) -> list[str]:
    """Lines outside fences: prose, unless they are something else; and statements, where no code is fenced."""
    known = _by_line(lines)
    if not has_code:
        for n in statements(lines):
            known[n] = "code"
    return [kind or "prose" for kind in known]


def _by_line(lines: list[str]) -> list[str]:
    """What each line is, as far as it can be nothing else."""
    kinds = [""] * len(lines)
    logged = log_lines(lines)
    inside = False
    for n, raw in enumerate(lines):
        line = _RANK.sub("", raw)
        if _FRAME.match(line):
            inside, kinds[n] = True, "traceback"
        elif _RAISED.match(line.strip("` ")):
            inside, kinds[n] = False, "traceback"
        elif inside and _BELOW.match(line):
            kinds[n] = "traceback"
        else:
            inside = False
            if n in logged or _PRINTED.match(line):
                kinds[n] = "log"
            elif _FORM.match(line):
                kinds[n] = "form"
            elif _ENVIRONMENT.match(line):
                kinds[n] = "environment"
            elif _CONFIG.match(line):
                kinds[n] = "config"
    return _not_alone(kinds, lines)


def _not_alone(kinds: list[str], lines: list[str]) -> list[str]:
    """A single `key: value` is a sentence; a single version may be one too, and is only left out beside others."""
    for kind, fewest in (("config", _FEWEST), ("environment", 2)):
        places = [n for n, k in enumerate(kinds) if k == kind]
        runs: list[list[int]] = []
        for n in places:
            if runs and not any(
                lines[m].strip() and kinds[m] != kind for m in range(runs[-1][-1] + 1, n)
            ):
                runs[-1].append(n)
            else:
                runs.append([n])
        for run in runs:
            if len(run) < fewest:
                for n in run:
                    kinds[n] = ""
    return kinds
