"""What mkdocs is told beyond mkdocs.yml: the menu of rules, documents outside of docs/ as pages, and links that lead to them.

The documents themselves stay as people read them in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from fallline.report.rule_page import page_name
from fallline.rules import all_rules
from fallline.specialists import SPECIALISTS

ROOT = Path(__file__).resolve().parent.parent
# page of the site → document of the repository
ADDED = {
    "results.md": "benchmarks/RESULTS.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Put every page into the menu: rules under their specialist, and what mkdocs.yml does not name under Guides."""
    named = set(re.findall(r"[\w/.-]+\.md", str(config["nav"])))
    rules: list[Any] = ["rules/README.md"]
    for specialist in SPECIALISTS:
        group = [rule for rule in all_rules() if rule.specialist == specialist]
        title = specialist.name.replace("-", " ")
        rules.append({title[0].upper() + title[1:]: [f"rules/{page_name(r)}" for r in group]})
    for entry in config["nav"]:
        if "Rules" in entry:
            entry["Rules"] = rules
    guides = next(entry["Guides"] for entry in config["nav"] if "Guides" in entry)
    guides += sorted(p.name for p in (ROOT / "docs").glob("*.md") if p.name not in named)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the documents that are not in docs/."""
    for name, source in ADDED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to documents that are pages here go to the page; to other files of the repository, the words stay."""
    known = {file.src_uri for file in files}
    here = Path("docs") / page.file.src_uri
    if page.file.src_uri in ADDED:
        here = Path(ADDED[page.file.src_uri])

    def led(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        path = _normal(here.parent / target)
        page_of = {source: name for name, source in ADDED.items()}
        inside = path.removeprefix("docs/") if path.startswith("docs/") else page_of.get(path)
        if inside not in known:
            return words
        return f"[{words}]({_relative(inside, page.file.src_uri)}{anchor})"

    if page.file.src_uri in ADDED:
        return re.sub(r"(?<!!)\[([^\]]+)\]\(((?!\w+:|#)[^)#\s]+)(#[^)]*)?\)", led, markdown)
    return _LINK.sub(led, markdown)


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _relative(target: str, page: str) -> str:
    return "../" * page.count("/") + target
