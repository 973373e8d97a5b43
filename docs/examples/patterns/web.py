"""HTTP for the programs of this directory: JSON answers, any number of requests on a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus

Handler = Callable[[str, str, bytes], Awaitable[tuple[int, object]]]
"""Method, path and body -> status and answer."""

BODY_MAX = 65_536


async def serve(port: int, handle: Handler) -> asyncio.Server:
    """Answer requests until the server is closed."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip().split("\r\n")
                method, path, _ = first.split(" ")
                fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                length = int(fields.get("content-length", 0))
                if length > BODY_MAX:
                    return
                status, answer = await handle(method, path, await reader.readexactly(length))
                body = json.dumps(answer).encode()
                head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the caller has gone
        finally:
            writer.close()

    return await asyncio.start_server(connection, "127.0.0.1", port)
