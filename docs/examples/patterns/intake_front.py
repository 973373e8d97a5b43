"""Order intake, the front: an order is looked at, written to the log, and answered. It is fulfilled later.

python intake_front.py 127.0.0.1:9092 8301
"""

from __future__ import annotations

import asyncio
import json
import sys

import web

from strandline.client import ClientError
from strandline.client.aio import Producer

ORDERED = "orders.placed"
"""By user: all orders of one user are in one partition, in the order in which they came."""


def checked(body: bytes) -> dict[str, str]:
    """Judgement that can be given at once: whether it is an order at all.

    Raises:
        ValueError: it is none.
    """
    order = json.loads(body)
    if not isinstance(order, dict) or not all(isinstance(order.get(name), str) for name in ("id", "user", "item")):
        raise ValueError("an order has an id, a user and an item, each of them a string")
    return order


async def run(bootstrap: str, port: int) -> None:
    """Take orders until somebody stops it."""
    async with Producer(bootstrap) as producer:

        async def answer(method: str, path: str, body: bytes) -> tuple[int, object]:
            """POST /orders: 202 once every in-sync replica has the order."""
            try:
                order = checked(body)
            except ValueError as error:
                return 400, {"error": str(error)}
            try:
                await producer.send_and_wait(ORDERED, json.dumps(order).encode(), key=order["user"].encode())
            except ClientError as error:
                return 503, {"error": f"send it again, with the same id: {error}"}
            return 202, {"order": order["id"]}

        async with await web.serve(port, answer) as server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
