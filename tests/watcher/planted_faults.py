"""The scripts in `planted/`, with one fault each. The first line says what the finding must name; `# HERE` is its line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """What the finding must say. `op` and `module` may name alternatives; None: not checked."""

    script: str
    code: str
    op: tuple[str, ...] | None
    module: tuple[str, ...] | None
    step: int
    status: int = 0  # of the script itself

    @property
    def line(self) -> int | None:
        lines = self.script.split("\n")
        return next((n for n, text in enumerate(lines, 1) if "# HERE" in text), None)


def _read(path: Path) -> Fault:
    script = path.read_text(encoding="utf-8")
    said = json.loads(script.partition("\n")[0].removeprefix("# "))
    for name in ("op", "module"):
        said[name] = None if said[name] is None else tuple(said[name])
    return Fault(script, **said)


FAULTS = {
    path.stem: _read(path) for path in sorted((Path(__file__).parent / "planted").glob("*.py"))
}
