"""Run one node as a process: configuration, signals, the exit code.

Lean on purpose: what only the command line needs (click, rich) is not imported here, for every node would pay for it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

from strandline.cluster.config import NodeConfig
from strandline.proto.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.cluster.node import Node

EXIT_FAILED = 1


def run(config: NodeConfig) -> int:
    """Run until SIGTERM or SIGINT (a controlled shutdown; a second one stops at once) or until the node must stop.

    Writes one JSON line to standard output once the node does its work: for whoever started it.

    Returns:
        the process's exit code.
    """
    from strandline.cluster.logging import configure_logging

    configure_logging(config.logging_level, config.logging_format)
    try:
        return asyncio.run(_run(config))
    except (StrandlineError, OSError) as error:
        print(f"strandline: {error}", file=sys.stderr)  # noqa: T201 - the sentence that the operator reads
        return EXIT_FAILED


async def _run(config: NodeConfig) -> int:
    from strandline.cluster.node import Node
    from strandline.cluster.world import system_world

    loop = asyncio.get_running_loop()
    world = system_world()
    node = Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await node.start()
    announce = loop.create_task(_announce(node))
    stop = loop.create_task(stopping.wait())
    ends: list[asyncio.Future[Any]] = [stop, node.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    announce.cancel()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    await node.stop()
    if node.failed.done():
        node.failed.result()
    return 0


async def _announce(node: Node) -> None:
    await node.wait_ready()
    # What was made so far lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    print(json.dumps({"event": "ready", **node.describe()}), flush=True)  # noqa: T201


def main(arguments: list[str]) -> int:
    """``python -m strandline.cluster.run_node FILE``: how `strandline dev` starts its nodes."""
    try:
        config = NodeConfig.load(arguments[0])
    except StrandlineError as error:
        print(f"strandline: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    return run(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
