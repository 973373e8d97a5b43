"""A node in this process for the tests of TLS and SASL, and a client that knocks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.security.tls_case import ca
from tests.ports import free_port

from strandline.client.config import AdminConfig
from strandline.client.session import Session
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.format import format_directory
from strandline.cluster.node.node import Node
from strandline.cluster.node.world import system_world


def node_config(path: Path, **more: str) -> NodeConfig:
    """A node of both roles; settings with _ for each dot."""
    internal = free_port()
    given = {
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,INTERNAL://127.0.0.1:{internal},HTTP://127.0.0.1:0",
        "log.dirs": str(path),
        "controller.quorum.voters": f"1@127.0.0.1:{internal}",
        "offsets.topic.num.partitions": "1",
        "ssl.keystore.location": str(ca().node(1)),
        "ssl.truststore.location": str(ca().file),
    }
    return NodeConfig({**given, **{key.replace("_", "."): value for key, value in more.items()}})


def run(path: Path, body: Callable[[Node], Awaitable[None]], *, add_scram: Sequence[str] = (), **more: str) -> None:
    """A node of this directory, formatted if need be; the test; the end of the node."""

    async def main() -> None:
        world = system_world()
        config = node_config(path, **more)
        format_directory(
            world.disk, config, cluster_id="a-cluster", rng=world.rng, ignore_formatted=True, add_scram=add_scram
        )
        node = Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc)
        await node.start()
        try:
            async with asyncio.timeout(60):
                await node.wait_ready()
                await body(node)
        finally:
            await node.stop()

    asyncio.run(main())


def at(node: Node, listener: str) -> str:
    """Where it listens."""
    return str(node.describe()[listener])


def secure(**more: Any) -> dict[str, Any]:
    """The settings of a client that trusts the CA."""
    return {"security_protocol": "SSL", "ssl_truststore_location": str(ca().file), **more}


async def knock(bootstrap: str, **settings: Any) -> None:
    """Connect once, without the retries of a whole client."""
    session = Session(bootstrap, AdminConfig(settings))
    try:
        (await session.network.to_any([])).close()
    finally:
        await session.close()
