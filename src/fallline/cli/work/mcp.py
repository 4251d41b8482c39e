"""What `fallline mcp` does."""

from __future__ import annotations

import sys

from fallline.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["run"]

_LOOPBACK = "127.0.0.1"


def run(args: Namespace) -> int:
    if args.port is not None and not args.http:
        raise UsageError("--port belongs to --http: give both, or neither")
    if not args.root.is_dir():
        raise UsageError(f"--root {args.root} is not a folder")
    try:
        from fallline.mcp.server import make_server  # needs an extra that may be missing
    except ImportError as error:
        if not (error.name or "").startswith(("mcp", "anyio", "pydantic")):
            raise
        raise UsageError(
            "this needs the Model Context Protocol SDK, version 2: pip install 'fallline[mcp]'"
        ) from None
    server = make_server(args.root)
    if args.http:
        port = _free(8733 if args.port is None else args.port)
        print(f"fallline mcp: http://{_LOOPBACK}:{port}/mcp", file=sys.stderr, flush=True)
        server.run("streamable-http", host=_LOOPBACK, port=port)
    else:
        server.run("stdio")
    return 0


def _free(port: int) -> int:
    """The port, if nobody has it; asked here because the HTTP server would end without a reason."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"--port {port} cannot be used: {reason}") from None
        return int(probe.getsockname()[1])
