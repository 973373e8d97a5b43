"""How often each dish was ordered: consumed, and served over HTTP, by one event loop.

python board.py 127.0.0.1:9092 8080
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

from strandline.client.aio import Consumer

TOPIC = "dishes"


class Board:
    """What was ordered so far."""

    def __init__(self) -> None:
        self.ordered: Counter[str] = Counter()

    async def follow(self, bootstrap: str) -> None:
        """Count what comes, until it is cancelled."""
        async with Consumer(bootstrap, group_id="board", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(TOPIC)
            async for record in consumer:
                self.ordered[record.value.decode()] += 1

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One HTTP request, whatever it asks for: the counts."""
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(self.ordered).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()


async def serve(bootstrap: str, port: int) -> None:
    """Both at once."""
    board = Board()
    async with await asyncio.start_server(board.answer, "127.0.0.1", port) as server, asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve_forever())
        tasks.create_task(board.follow(bootstrap))


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
