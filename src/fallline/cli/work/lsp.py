"""What `fallline lsp` does."""

from __future__ import annotations

import logging
import os

from fallline.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["run"]


def run(args: Namespace) -> int:
    try:
        from fallline.lsp.server import make_server  # needs an extra that may be missing
    except ImportError as error:
        if not (error.name or "").startswith(("pygls", "lsprotocol", "cattrs", "attrs")):
            raise
        raise UsageError("this needs pygls, version 2: pip install 'fallline[lsp]'") from None
    logging.getLogger("pygls").setLevel(logging.ERROR)  # editors show what goes to standard error
    server = make_server()
    # pygls closes what it is given; what anybody prints goes to standard error, not between the messages
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        server.start_io(stdout=messages)
    finally:
        server.stop()
    return 0
