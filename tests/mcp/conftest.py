"""A folder to serve, the same folder's outside, and calls to a server in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fallline.mcp.server import make_server
from mcp import Client

CLIPS_LATE = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in [(torch.randn(8, 4), torch.randn(8, 1))] * 3:
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad()
"""

Call = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Keeps one event loop for all tests here, and with it the process that does the reading."""
    yield


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What is served: a script, and links that lead out."""
    inside, outside = tmp_path / "project", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "train.py").write_text(CLIPS_LATE)
    (outside / "secret.py").write_text(CLIPS_LATE)
    (inside / "link.py").symlink_to(outside / "secret.py")
    (inside / "away").symlink_to(outside)
    return inside


@pytest.fixture
def call(root: Path) -> Call:
    """Calls one tool: the structured result, or the words of the error."""

    async def calling(tool: str, **arguments: object) -> Any:
        async with Client(make_server(root)) as client:
            result = await client.call_tool(tool, arguments)
        return result.content[0].text if result.is_error else result.structured_content

    return calling
