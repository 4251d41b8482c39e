"""Code that a project keeps but that others wrote: what is wrong in it is a note, since nobody here mends it.

Its folder says so: by its name, by a licence of its own, or because it is a well-known package. Not where it is most of
what is checked: whoever checks such a folder means it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import replace

from fallline.finding import Finding, Severity

__all__ = ["Borrowed"]

_NAMES = frozenset(
    "third_party thirdparty third-party 3rdparty 3rd_party vendor vendored _vendor external externals extern submodules".split()
)
# Packages that people copy into their projects instead of installing them.
_PACKAGES = frozenset(
    "apex clip detectron2 diffusers dnnlib espnet fairseq guided_diffusion lpips maskrcnn_benchmark mmcv mmdet mmdet3d mmseg "
    "open_clip peft pytorch_fid pytorch_pretrained_bert pytorch_transformers taming timm torchvision transformers trl ultralytics".split()
)
_LICENCE = re.compile(r"(licen[cs]e|copying)(\.\w+)?$", re.I)
_HOLDER = re.compile(r"copyright\b[^\n]*", re.I)


class Borrowed:
    """Asked of the findings of one check."""

    def __init__(self, root: str, files: Collection[str]) -> None:
        self._root = os.path.abspath(root)
        self._files = [os.path.abspath(path) for path in files]
        self._known: dict[str, bool] = {}

    def noted(self, finding: Finding) -> Finding:
        """A note where the finding is in such code."""
        if finding.severity is Severity.INFO or not self._holds(finding.at.path):
            return finding
        message = f"{finding.message} This file seems to come from another project."
        return replace(finding, severity=Severity.INFO, message=message)

    def _holds(self, path: str) -> bool:
        folder = os.path.dirname(os.path.abspath(path))
        while folder.startswith(self._root + os.sep):
            if folder not in self._known:
                self._known[folder] = self._is_package(folder) or (
                    self._foreign(folder) and self._is_small_part(folder)
                )
            if self._known[folder]:
                return True
            folder = os.path.dirname(folder)
        return False

    def _is_package(self, folder: str) -> bool:
        """The unpacked archive of a well-known package, however large, beside files of the project's own."""
        name = re.sub(r"[-_](master|main)$", "", os.path.basename(folder).lower())
        archive = name != os.path.basename(folder).lower() and name in _PACKAGES
        return archive and not all(path.startswith(folder + os.sep) for path in self._files)

    def _is_small_part(self, folder: str) -> bool:
        inside = sum(path.startswith(folder + os.sep) for path in self._files)
        return 2 * inside < len(self._files)

    def _foreign(self, folder: str) -> bool:
        name = os.path.basename(folder).lower()
        # as an archive of a repository is called when it is unpacked
        if name in _NAMES or re.search(r"[-_](master|main)$", name):
            return True
        if name in _PACKAGES and os.path.isfile(os.path.join(folder, "__init__.py")):
            return name not in os.path.basename(self._root).lower()
        return self._has_other_licence(folder)

    def _has_other_licence(self, folder: str) -> bool:
        """The project is under a licence of one holder, the folder under one of another."""
        here, there = _holders(folder), _holders(self._root)
        return bool(here) and bool(there) and here.isdisjoint(there)


def _holders(folder: str) -> frozenset[str]:
    """The lines of a folder's licence that say whose it is."""
    try:
        names = [name for name in os.listdir(folder) if _LICENCE.match(name)]
        texts = []
        for name in names:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                texts.append(file.read(20_000))
    except OSError:
        return frozenset()
    lines = (line for text in texts for line in _HOLDER.findall(text))
    return frozenset(line.strip().lower() for line in lines if re.search(r"\b(19|20)\d\d\b", line))
