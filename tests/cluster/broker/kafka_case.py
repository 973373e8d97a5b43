"""What the tests of the APIs share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kafka_node import KafkaNode, kafka_node
from kafka_wire import KafkaClient, connect

from strandline.cluster.broker.table import APIS

NAMED = {served.api.title: served for served in APIS.values()}


def versions(name: str) -> range:
    """Every version of an API that is advertised."""
    return range(NAMED[name].first, NAMED[name].last + 1)


def run(path: Path, main: Callable[[KafkaNode, KafkaClient], Awaitable[None]], **options: Any) -> None:
    """A node, one client, the test."""

    async def body() -> None:
        async with kafka_node(path, **options) as node, connect(node.listener.endpoint) as client:
            await main(node, client)

    asyncio.run(body())
