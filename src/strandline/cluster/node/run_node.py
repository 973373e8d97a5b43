"""Runs one node as a process: configuration, signals, exit code, and logs on standard error (one line per event, as
key=value pairs or as JSON).

Packages that only the command line needs (click, rich) are not imported here, to keep each node small.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import json
import logging
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from strandline.cluster.broker.log_levels import ROOT, LogLevels
from strandline.cluster.node.blocked_loop import BlockedLoop, end_process
from strandline.cluster.node.config import NodeConfig
from strandline.cluster.node.log_wiring import (
    KAFKAS_WORDS,
    FloodFilter,
    FloodProcessor,
    LevelledLogger,
    LevelledLoggers,
)
from strandline.cluster.node.node_loop import NodeLoop, collect_seldom
from strandline.cluster.node.ports import holder_of, is_free
from strandline.cluster.node.world import system_world
from strandline.log import compiled
from strandline.proto.errors import StrandlineError
from strandline.proto.notes import Flood
from strandline.proto.printable import printable_lines
from strandline.proto.system import SystemClock
from strandline.proto.tasks import spawn

if TYPE_CHECKING:
    from strandline.cluster.node.node import Node

log = structlog.get_logger("strandline.node")

EXIT_FAILED = 1

FAILED_STOP_S = 5.0
"""Seconds that a failed node may take to end its sessions and close its files, before the process ends anyway."""

PR_SET_PDEATHSIG = 1
"""Option of prctl(2) that sets the signal which a process gets when its parent dies."""

END_WITH_INPUT = "--end-with-input"
"""Option to stop when standard input ends: it is a pipe from the process that started the node, and that has ended."""


def run(config: NodeConfig, *, end_with_input: bool = False) -> int:
    """Run until the node must stop, or until SIGTERM or SIGINT: the first signal begins a controlled shutdown, after
    the second it no longer waits for other nodes, the third ends the process.

    Writes one JSON line to standard output once the node is ready, for the process that started it.

    Returns:
        the process's exit code.
    """
    levels = configure_logging(config.logging_level, config.logging_format)
    try:
        with asyncio.Runner(loop_factory=NodeLoop) as runner:
            return runner.run(_run(config, levels, end_with_input))
    except (StrandlineError, OSError) as error:
        print(printable_lines(f"strandline: {_explain(config, error)}"), file=sys.stderr)  # noqa: T201 - what the operator reads
        return EXIT_FAILED


def _explain(config: NodeConfig, error: Exception) -> str:
    """Return the message for an error; for a port in use, with the process that uses it and the setting to change."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        for listener in config.listeners:
            if not is_free(listener.endpoint):
                holder = holder_of(listener.endpoint.port)
                return f"{listener.name} cannot listen on {listener.endpoint}: {holder}. `listeners` sets another port"
    return str(error)


async def _run(config: NodeConfig, levels: LogLevels, end_with_input: bool) -> int:
    gc.disable()  # loading modules makes no garbage, and collections take a tenth of the time
    from strandline.cluster.node.node import Node
    from strandline.log.real_disk import RealDisk

    gc.enable()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_tell_unhandled)
    if lacking := compiled.missing():
        log.warning("this installation is slow", what=compiled.CONSEQUENCE, missing=lacking, remedy=compiled.REMEDY)
    world = system_world()
    others = {path: RealDisk() for path in config.log_dirs[1:]}
    node = Node(
        config, disk=world.disk, disks=others, clock=world.clock, rng=world.rng, rpc=world.rpc, log_levels=levels
    )
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, loop, number, node, stopping)
    if end_with_input:
        _wake_if_the_starter_dies()
        loop.add_reader(0, _read_input, loop, stopping)
    await node.start()
    assert isinstance(world.disk, RealDisk)
    disks = {config.data_dir: world.disk, **others}
    watches = [
        BlockedLoop(disk, lambda: node.disk_bound_ms, partial(_end_blocked, path)) for path, disk in disks.items()
    ]
    for watch in watches:
        watch.start()
    announce = spawn(_announce(node), _tell_unannounced)
    stop = loop.create_task(stopping.wait())
    ends: list[asyncio.Future[Any]] = [stop, node.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    announce.cancel()
    await _stop(config, node)
    for watch in watches:
        watch.stop()
    return 0


async def _stop(config: NodeConfig, node: Node) -> None:
    """Stop the node. If it has failed, before or during the stop, the process ends after `FAILED_STOP_S` at the latest,
    even if parts of the node still wait."""
    stopping = asyncio.get_running_loop().create_task(node.stop())
    ends: list[asyncio.Future[Any]] = [stopping, node.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if node.failed.done():
        await asyncio.wait([stopping], timeout=FAILED_STOP_S)
        error = node.failed.exception()
        assert isinstance(error, Exception)
        end_process(_explain(config, error))
    stopping.result()


def _end_blocked(directory: str, path: str) -> None:
    """End the process, called in the watching thread because the event loop is blocked."""
    end_process(f"the disk of {directory} has not answered for longer than disk.sync.timeout.ms, at {path}")


def _tell_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the exception of a callback or of a task that is not awaited, an internal error that nothing else reports."""
    log.error(
        "internal error: an exception that nobody handled", what=context["message"], exc_info=context.get("exception")
    )


def _tell_unannounced(error: BaseException) -> None:
    log.error("that the node is ready could not be told to whoever started it", error=repr(error))


def _on_signal(loop: asyncio.AbstractEventLoop, number: int, node: Node, stopping: asyncio.Event) -> None:
    if not stopping.is_set():
        stopping.set()
    elif not node.hurried.is_set():
        node.hurried.set()
    else:
        loop.remove_signal_handler(number)
        os.kill(os.getpid(), number)


def _wake_if_the_starter_dies() -> None:
    """Ask Linux for SIGCONT when the parent process dies: a node paused by SIGSTOP cannot see that its input ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def _read_input(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    if not os.read(0, 4096):
        loop.remove_reader(0)
        stopping.set()


async def _announce(node: Node) -> None:
    await node.wait_ready()
    collect_seldom(asyncio.get_running_loop())
    print(json.dumps({"event": "ready", **node.describe()}), flush=True)  # noqa: T201


def main(arguments: list[str]) -> int:
    """Run ``python -m strandline.cluster.node.run_node FILE [--end-with-input]``, as `strandline dev` starts nodes.
    Returns the exit code."""
    try:
        config = NodeConfig.load(arguments[0])
    except StrandlineError as error:
        print(printable_lines(f"strandline: {error}"), file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    return run(config, end_with_input=END_WITH_INPUT in arguments)


def configure_logging(level: str, form: str) -> LogLevels:
    """Set up structlog, and the standard library's logging in the same format, for this process.

    Args:
        level: debug, info, warning or error.
        form: "keyvalue" or "json".

    Returns:
        the levels of the loggers, which can be changed.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    )
    # grpc logs the same events as `strandline.internal`, with tracebacks of ended calls.
    levels = LogLevels({ROOT: KAFKAS_WORDS.get(level, level.upper()), "grpc": "FATAL"})
    flood = Flood(SystemClock())
    structlog.configure(
        processors=[FloodProcessor(flood), *shared, renderer],
        wrapper_class=LevelledLogger,
        logger_factory=(ours := LevelledLoggers(levels)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    handler.addFilter(FloodFilter(flood))
    logging.basicConfig(handlers=[handler], force=True)
    levels.applied_by(ours.apply)
    return levels


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
