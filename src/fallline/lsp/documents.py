"""What is open in the editor, as files of projects: text documents by their text, notebooks as the JSON their file would have."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from lsprotocol import types
from pygls import uris
from pygls.workspace import Workspace

from fallline.check.settings import nearest
from fallline.errors import UsageError
from fallline.lsp.project import as_bytes

__all__ = ["Documents", "documents_of"]


@dataclass
class Documents:
    """The open documents of one project's folder: contents by path, and where each is in the editor."""

    folder: str
    contents: dict[str, bytes] = field(default_factory=dict)
    addresses: dict[tuple[str, int | None], str] = field(default_factory=dict)  # path, cell → URI
    versions: dict[str, int | None] = field(default_factory=dict)  # URI → version

    def address(self, path: str, cell: int | None) -> str | None:
        """The URI of a file or cell; None for a cell of a notebook that is not open."""
        known = self.addresses.get((path, cell))
        if known is not None or cell is not None or path.endswith(".ipynb"):
            return known
        uri: str | None = uris.from_fs_path(path)
        return uri

    def place(self, uri: str) -> tuple[str, int | None] | None:
        """The path and cell of a URI that is open here."""
        return next((place for place, address in self.addresses.items() if address == uri), None)


def documents_of(workspace: Workspace) -> dict[str, Documents]:
    """Everything that is open and can be read, by the folder of the project it belongs to."""
    projects: dict[str, Documents] = {}
    in_cells: set[str] = set()
    for notebook in workspace.notebook_documents.values():
        in_cells.update(cell.document for cell in notebook.cells)
        path = _path(notebook.uri, workspace, ".ipynb")
        project = _project(projects, path, workspace)
        project.contents[path] = _notebook(notebook, workspace)
        for number, cell in enumerate(notebook.cells, 1):
            project.addresses[path, number] = cell.document
            project.versions[cell.document] = workspace.get_text_document(cell.document).version
    for document in workspace.text_documents.values():
        if document.uri in in_cells or not _is_python(document.uri, document.language_id):
            continue
        path = _path(document.uri, workspace, ".py")
        project = _project(projects, path, workspace)
        project.contents[path] = as_bytes(document.source)
        project.addresses[path, None] = document.uri
        project.versions[document.uri] = document.version
    return projects


def _is_python(uri: str, language: str | None) -> bool:
    return language == "python" if language else uri.endswith(".py")


def _path(uri: str, workspace: Workspace, suffix: str) -> str:
    """The file's path; one that was never saved gets a name in the workspace's folder."""
    if uri.startswith("file:") and (path := uris.to_fs_path(uri)):
        return os.path.abspath(path)
    name = "".join(c for c in uri.rpartition(":")[2].rpartition("/")[2] if c.isalnum() or c in "-_")
    return os.path.join(_folders(workspace)[0], f"{name or 'untitled'}{suffix}")


def _folders(workspace: Workspace) -> list[str]:
    found = [uris.to_fs_path(folder.uri) for folder in workspace.folders.values()]
    return [os.path.abspath(f) for f in (*found, workspace.root_path) if f] or [os.getcwd()]


def _project(projects: dict[str, Documents], path: str, workspace: Workspace) -> Documents:
    folder = _folder(path, workspace)
    return projects.setdefault(folder, Documents(folder))


def _folder(path: str, workspace: Workspace) -> str:
    """Where the settings are, else the folder that the editor has open, else the file alone: its folder may be a whole disk."""
    try:
        settings = nearest([path])
    except UsageError:  # told when the project is read
        settings = None
    if settings is not None:
        return os.path.dirname(settings)
    around = [f for f in _folders(workspace) if path.startswith(os.path.join(f, ""))]
    return max(around, key=len, default=path)


def _notebook(notebook: types.NotebookDocument, workspace: Workspace) -> bytes:
    cells = [
        {
            "cell_type": "code" if _is_code(cell, workspace) else "markdown",
            "source": workspace.get_text_document(cell.document).source,
        }
        for cell in notebook.cells
    ]
    return json.dumps({"cells": cells}).encode()


def _is_code(cell: types.NotebookCell, workspace: Workspace) -> bool:
    if cell.kind != types.NotebookCellKind.Code:
        return False
    language = workspace.get_text_document(cell.document).language_id
    return _is_python(cell.document, language or "python")
