"""Run one node as a process: configuration, signals, the exit code.

Lean on purpose: what only the command line needs (click, rich) is not imported here, for every node would pay for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from strandline.cluster.config import NodeConfig
from strandline.cluster.ports import holder_of, is_free
from strandline.proto.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.cluster.node import Node

EXIT_FAILED = 1

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""

END_WITH_INPUT = "--end-with-input"
"""Stop when standard input ends: whoever started the node holds the other end of a pipe, and is gone."""


def run(config: NodeConfig, *, end_with_input: bool = False) -> int:
    """Run until the node must stop, or until SIGTERM or SIGINT: the first asks for a controlled shutdown, the second
    waits for no other node any more, the third ends the process.

    Writes one JSON line to standard output once the node does its work: for whoever started it.

    Returns:
        the process's exit code.
    """
    from strandline.cluster.logging import configure_logging

    configure_logging(config.logging_level, config.logging_format)
    try:
        return asyncio.run(_run(config, end_with_input))
    except (StrandlineError, OSError) as error:
        print(f"strandline: {_explain(config, error)}", file=sys.stderr)  # noqa: T201 - what the operator reads
        return EXIT_FAILED


def _explain(config: NodeConfig, error: Exception) -> str:
    """The sentence for an error; for a taken port, who holds it and which setting changes it."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        for listener in config.listeners:
            if not is_free(listener.endpoint):
                holder = holder_of(listener.endpoint.port)
                return f"{listener.name} cannot listen on {listener.endpoint}: {holder}. `listeners` sets another port"
    return str(error)


async def _run(config: NodeConfig, end_with_input: bool) -> int:
    from strandline.cluster.node import Node
    from strandline.cluster.world import system_world

    loop = asyncio.get_running_loop()
    world = system_world()
    node = Node(config, disk=world.disk, clock=world.clock, rng=world.rng, rpc=world.rpc)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, loop, number, node, stopping)
    if end_with_input:
        _wake_if_the_starter_dies()
        loop.add_reader(0, _read_input, loop, stopping)
    await node.start()
    announce = loop.create_task(_announce(node))
    stop = loop.create_task(stopping.wait())
    ends: list[asyncio.Future[Any]] = [stop, node.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    announce.cancel()
    await node.stop()
    if node.failed.done():
        node.failed.result()
    return 0


def _on_signal(loop: asyncio.AbstractEventLoop, number: int, node: Node, stopping: asyncio.Event) -> None:
    if not stopping.is_set():
        stopping.set()
    elif not node.hurried.is_set():
        node.hurried.set()
    else:
        loop.remove_signal_handler(number)
        os.kill(os.getpid(), number)


def _wake_if_the_starter_dies() -> None:
    """A node that was stopped (SIGSTOP) cannot see that its input has ended: Linux shall continue it then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def _read_input(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    if not os.read(0, 4096):
        loop.remove_reader(0)
        stopping.set()


async def _announce(node: Node) -> None:
    await node.wait_ready()
    # What was made so far lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    print(json.dumps({"event": "ready", **node.describe()}), flush=True)  # noqa: T201


def main(arguments: list[str]) -> int:
    """``python -m strandline.cluster.run_node FILE [--end-with-input]``: how `strandline dev` starts its nodes."""
    try:
        config = NodeConfig.load(arguments[0])
    except StrandlineError as error:
        print(f"strandline: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    return run(config, end_with_input=END_WITH_INPUT in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
