"""Everything that the engine has to show on a GPU, in one command of less than five minutes:

    PYTHONPATH=src python benchmarks/engine_device.py $OUT            # measures, and leaves engine.json, save-1300.json, save-50.json in that folder
    python benchmarks/engine_device.py FOLDER --write                 # puts those files into RESULTS.md, and measures nothing

The checks and the table of engine_gpu.py, then engine_save.py with 1.3 B and with 50 M parameters. On a machine without a GPU it measures the small save only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTS = {
    "engine.json": ["engine_gpu.py"],
    "save-50.json": ["engine_save.py", "--parameters", "50"],
    "save-1300.json": ["engine_save.py", "--parameters", "1300", "--following", "8"],
}
ON_CPU = ("save-50.json",)


def measure(folder: Path, on_gpu: bool) -> int:
    status = 0
    for name, (script, *options) in PARTS.items():
        if not on_gpu and name not in ON_CPU:
            continue
        began = time.monotonic()
        command = [sys.executable, str(HERE / script), *options, "--json", str(folder / name)]
        ended = subprocess.run(command, check=False).returncode
        print(f"{script} {' '.join(options)}: {time.monotonic() - began:.0f} s, status {ended}")
        status = status or ended
    return status


def row(what: str, key: str, part: str | None, saves: list[dict[str, Any]], unit: str) -> str:
    values = [save[part][key] if part else save[key] for save in saves]
    shown = [f"{value:,.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}" for value in values]
    return f"| {what} | {' | '.join(shown)} |"


def section(saves: list[dict[str, Any]]) -> str:
    sizes = [f"{s['parameters'] / 1e6:,.0f} M parameters, {s['bytes'] / 1e9:.1f} GB" for s in saves]
    background = [f"{100 * s['background / blocking']:.1f} %" for s in saves]
    return "\n".join(
        [
            f"`PYTHONPATH=src python benchmarks/engine_device.py FOLDER`, {saves[0]['day']}, {saves[0]['device']}, torch {saves[0]['torch']}: model and AdamW's state, one process; "
            "what was saved is loaded and compared bit for bit.",
            "",
            f"| | {' | '.join(sizes)} |",
            f"|---|{'---|' * len(saves)}",
            row("one update", "update ms", None, saves, "ms"),
            row("`wait=True`: training waits", "training waits ms", "blocking", saves, "ms"),
            row("`wait=False`: the call takes", "call ms", "background", saves, "ms"),
            row("`wait=False`: training waits in total", "training waits ms", "background", saves, "ms"),
            f"| of `wait=True` | {' | '.join(background)} |",
            row("the first one, which allocates its buffers", "training waits ms", "background, first", saves, "ms"),
            row("on disk after", "on disk s", "background", saves, "s"),
        ]
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write what is there into RESULTS.md")
    options = parser.parse_args()
    if options.write:
        from results import write_section

        found = [options.folder / name for name in ("save-1300.json", "save-50.json")]
        saves = [json.loads(file.read_text()) for file in found if file.exists()]
        write_section("saving", section(saves))
        if (options.folder / "engine.json").exists():
            command = [sys.executable, str(HERE / "engine_gpu.py")]
            subprocess.run([*command, "--write", str(options.folder / "engine.json")], check=True)
        return 0
    import torch

    options.folder.mkdir(parents=True, exist_ok=True)
    return measure(options.folder, torch.cuda.is_available())


if __name__ == "__main__":
    raise SystemExit(main())
