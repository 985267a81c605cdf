"""A server of the official library for Python.

With the argument `stdio` on standard input and output, else on a free port of loopback, whose address it prints.
"""

import asyncio
import socket
import sys

from mcp.server import MCPServer

server = MCPServer("calculator")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def divide(a: float, b: float) -> float:
    """Divides two numbers."""
    return a / b


@server.tool()
async def slow(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return "waited"


if sys.argv[1:] == ["stdio"]:
    server.run("stdio")
    sys.exit()

import uvicorn  # noqa: E402

listener = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
app = server.streamable_http_app()
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
