"""Make docs/images/terminal.svg: what `fallline check` really prints about a broken example, drawn by rich.

python scripts/terminal_picture.py
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
FOLDER, SCRIPT = ROOT / "examples" / "char_language_model", "broken.py"
COMMAND = f"fallline check {SCRIPT}"
WIDTH = 104


def main() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "fallline", *COMMAND.split()[1:], "--no-cache", "--color", "always"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(f"[bold green]$[/] {COMMAND}\n")
    console.print(Text.from_ansi(ran.stdout + ran.stderr))
    drawn = console.export_svg(title="fallline", theme=DIMMED_MONOKAI, unique_id="fallline")
    PICTURE.write_text(_offline(drawn), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


def _offline(svg: str) -> str:
    """Without the fonts that rich would fetch: the reader's own monospaced one is drawn at the same width."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    assert "http" not in svg.replace("http://www.w3.org", "").replace(
        "https://www.textualize.io", ""
    )
    return svg


if __name__ == "__main__":
    main()
