"""Consumers of a group in processes of their own, told what to do over a pipe (confluent-kafka for every cluster)."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from bench.secured import librdkafka_settings

WAIT_S = 60.0
"""Everything about groups is given up after so long."""

READ_AHEAD = {
    "fetch_message_max_bytes": 1_048_576,
    "queued_max_messages_kbytes": 65_536,
    "queued_min_messages": 1_000_000,
    "fetch_queue_backoff_ms": 10,
}
"""By default librdkafka asks for nothing during a second once 100,000 messages, or 64 MB, wait to be handled: small
records are soon so many, and a load of a second or two would measure that pause."""

_QUIET = logging.getLogger("bench.librdkafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


def consumer_settings(bootstrap: str, group: str, **settings: Any) -> dict[str, Any]:
    """From the beginning, no automatic commits; keyword `group_protocol` means group.protocol."""
    return {
        "bootstrap.servers": bootstrap,
        **librdkafka_settings(),
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "logger": _QUIET,
        "log_level": 0,
        **{key.replace("_", "."): value for key, value in settings.items()},
    }


def wait_until(holds: Callable[[], bool], what: str, since: float | None = None) -> float:
    """Seconds until it holds (from `since`, or from now). Raises TimeoutError."""
    began = time.perf_counter() if since is None else since
    while not holds():
        if time.perf_counter() > began + WAIT_S:
            raise TimeoutError(f"{what}: not within {WAIT_S:g} s")
        time.sleep(0.005)
    return time.perf_counter() - began


@contextmanager
def processes(work: Callable[..., None], count: int, *arguments: object) -> Iterator[list[Connection]]:
    """`work(pipe, *arguments)` in so many processes; their pipes' other ends. Killed at the end if they still run."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for _ in range(count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=work, args=(theirs, *arguments), daemon=True)
            process.start()
            stack.callback(process.kill)
            stack.callback(process.join, 10)
            pipes.append(ours)
        yield pipes


def told(member: Connection) -> Any:
    """What a member says next. Raises TimeoutError."""
    if not member.poll(3 * WAIT_S):
        raise TimeoutError("a process that was started says nothing")
    return member.recv()


def tell(members: Sequence[Connection], word: str) -> None:
    """The same word to each."""
    for member in members:
        member.send(word)
