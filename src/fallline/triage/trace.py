"""A pasted traceback: its frames, and the last line in it that is the asker's own."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Frame", "frames", "read_from"]

_STANDARD = re.compile(
    r'^[^\S\n]*(?:\[rank\d+\]:\s*)?File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>[^\n]+))?\n(?P<code>[^\n]*)',
    re.M,
)
_NOTEBOOK = re.compile(
    r"^(?:File )?(?P<file>[~/][\w./ -]+\.py|Cell In ?\[\d+\]|<ipython-input[^>\n]*>)[^\n]*\n(?P<body>(?:[^\n]*\n)*?)[^\S\n]*-+>[^\S\n]*(?P<line>\d+)[^\S\n](?P<code>[^\n]*)",
    re.M,
)
_NOT_OWN = re.compile(
    r"site-packages|dist-packages|/lib/python\d|[Aa]naconda\d?/(?:lib|envs)|<frozen|<string>|/usr/lib|runpy\.py|torch/(?:nn|optim|utils|_tensor|autograd|distributed)/"
)
_MARKS = re.compile(r"^[\s^~]+$")
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry of a traceback."""

    file: str
    line: int
    code: str
    function: str = ""

    @property
    def own(self) -> bool:
        """Whether it is no file of a library."""
        return _NOT_OWN.search(self.file) is None


def frames(text: str) -> list[Frame]:
    """The frames of the tracebacks in a text, in its order."""
    found = [
        (
            m.start(),
            Frame(m["file"], int(m["line"]), _code(m["code"]), m.groupdict().get("function") or ""),
        )
        for pattern in (_STANDARD, _NOTEBOOK)
        for m in pattern.finditer(text)
    ]
    return [frame for _, frame in sorted(found, key=lambda row: row[0])]


def read_from(text: str) -> dict[str, str]:
    """What claims may say of the last traceback: the asker's own last line of it (`own`), where that is (`place`), and where all of it ran (`ran`)."""
    last = frames(text[max(0, text.rfind("Traceback (most recent call last)")) :])
    if not last:
        return {}
    own = next((f for f in reversed(last) if f.own and f.code), None)
    read = {"ran": " ".join(f"{f.file} {f.function} {f.code}" for f in last).lower()}
    if own is not None:
        file = re.split(r"[\\/]", own.file)[-1]
        where = file if file.startswith(("Cell", "<")) else f"line {own.line} of {file}"
        read |= {"own": own.code, "place": where}
    return read


def _code(line: str) -> str:
    code = "" if _MARKS.match(line) else line.strip().strip("`│| ").strip()
    return code if len(code) <= _LONGEST else f"{code[: _LONGEST - 4]} ..."
