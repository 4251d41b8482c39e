"""An editor that people use, without its screen: it shows the finding, applies the fix, and sees the finding go. `make test-long`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
EXAMPLE = Path(__file__).parents[2] / "examples" / "rnn"

SESSION = """
vim.cmd('edit train.py')
local id = vim.lsp.start_client{ name = 'fallline', cmd = { PYTHON, '-m', 'fallline', 'lsp' }, root_dir = FOLDER }
vim.lsp.buf_attach_client(0, id)
vim.wait(300000, function() return #vim.diagnostic.get(0) > 0 end, 100)
local out = { vim.diagnostic.get(0)[1].code }
local line = vim.diagnostic.get(0)[1].lnum
local here = { line = line, character = 9 }
local asked = {
  textDocument = vim.lsp.util.make_text_document_params(0),
  range = { start = here, ['end'] = here },
  context = { diagnostics = {} },
}
for _, reply in pairs(vim.lsp.buf_request_sync(0, 'textDocument/codeAction', asked, 300000)) do
  table.insert(out, reply.result[1].title)
  for _, resolved in pairs(vim.lsp.buf_request_sync(0, 'codeAction/resolve', reply.result[1], 300000)) do
    vim.lsp.util.apply_workspace_edit(resolved.result.edit, 'utf-16')
  end
end
vim.wait(300000, function() return #vim.diagnostic.get(0) == 0 end, 100)
table.insert(out, tostring(#vim.diagnostic.get(0)))
vim.cmd('write')
vim.fn.writefile(out, 'said.txt')
vim.lsp.stop_client(id)
vim.cmd('qa!')
"""


def test_neovim_shows_and_fixes(tmp_path: Path) -> None:
    editor = shutil.which("nvim")
    if editor is None:
        pytest.skip("Neovim is not installed here")
    shutil.copy(EXAMPLE / "broken.py", tmp_path / "train.py")
    head = f"local PYTHON, FOLDER = '{sys.executable}', '{tmp_path}'\n"
    (tmp_path / "session.lua").write_text(head + SESSION)
    subprocess.run(
        [editor, "--headless", "--clean", "-c", "luafile session.lua"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=1800,
    )
    said = (tmp_path / "said.txt").read_text().split("\n")
    assert said[:3] == ["FL101", "FL101: Clip before the step", "0"]
    fixed = (tmp_path / "train.py").read_text()
    clip, step = fixed.index("clip_grad_norm_"), fixed.index("optimizer.step()")
    assert clip < step
