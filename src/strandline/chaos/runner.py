"""Runs seeds, each in a forked child: nothing of one run reaches another, and the dead are never collected."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

from strandline.chaos.checkers.invariant import InvariantViolated

T = TypeVar("T")

_FORK = multiprocessing.get_context("fork")


class Run(Protocol):
    """One seed of a scenario, ready to execute."""

    def execute(self) -> dict[str, Any]:
        """Execute the run; returns figures of a run that held. Raises InvariantViolated, or whatever broke."""

    def expanded(self) -> dict[str, Any]:
        """All options, as the seed drew them."""

    def timeline(self) -> list[tuple[int, str]]:
        """(virtual ms, what happened): faults, restarts, phases."""


@dataclass
class Outcome:
    """Result of one seed."""

    seed: int
    ok: bool
    figures: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    """Name of the invariant, or type of the error."""
    message: str = ""
    details: str = ""
    """The traceback, for errors that are no invariant."""
    options: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[int, str]] = field(default_factory=list)
    cpu_s: float = 0.0
    injected: int = 0
    """Faults until the end."""


def run_one(seed: int, make: Callable[[int], Run]) -> Outcome:
    """Execute one seed here, in this process."""
    started = time.process_time()
    outcome = Outcome(seed, ok=False)
    try:
        run = make(seed)
        outcome.options = run.expanded()
        try:
            outcome.figures = run.execute()
            outcome.ok = True
        finally:
            outcome.events = run.timeline()
            outcome.injected = getattr(getattr(run, "nemesis", None), "injected", 0)
    except InvariantViolated as error:
        outcome.error, outcome.message = error.name, str(error)
    except Exception as error:
        outcome.error, outcome.message = type(error).__name__, str(error)
        outcome.details = traceback.format_exc()
    outcome.cpu_s = time.process_time() - started
    return outcome


def _started(target: Callable[..., None], *args: Any) -> BaseProcess:
    """A forked child that runs `target`. No signal comes between: what its handler raises in a hook of the fork is lost
    (logging has one), and the child would run the parent's handlers."""
    ends = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    def run() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: the parent ends its children
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        target(*args)

    process = _FORK.Process(target=run, daemon=True)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _child(connection: Connection, seed: int, make: Callable[[int], Run]) -> None:
    connection.send(run_one(seed, make))
    connection.close()
    os._exit(0)  # no finalisation: it would run the `finally` blocks of simulated processes that are dead


def in_child(function: Callable[[], T], *, timeout_s: float = 600.0) -> T:
    """The result of `function`, called in a forked child like a seed. It must pickle.

    Raises:
        RuntimeError: the child fell, or took longer than `timeout_s` of real time and was killed.
    """
    reader, writer = _FORK.Pipe(duplex=False)

    def child() -> None:
        writer.send(function())
        writer.close()
        os._exit(0)

    process = _started(child)
    writer.close()
    try:
        if not reader.poll(timeout_s):
            raise RuntimeError(f"the run took longer than {timeout_s:.0f} s")
        result: T = reader.recv()
    except EOFError:
        raise RuntimeError("the run ended without a result") from None
    finally:
        process.kill()
        process.join()
        reader.close()
    return result


def run_seeds(
    seeds: Iterable[int],
    make: Callable[[int], Run],
    *,
    jobs: int = 1,
    timeout_s: float = 600.0,
) -> Generator[Outcome, None, None]:
    """Execute every seed in a child of its own, `jobs` at a time; outcomes come as they end.

    A child that takes longer than `timeout_s` of real time is killed and counts as failed.
    """
    waiting = iter(seeds)
    running: dict[Any, tuple[int, BaseProcess, float]] = {}
    try:
        while True:
            while len(running) < jobs and (seed := next(waiting, None)) is not None:
                reader, writer = _FORK.Pipe(duplex=False)
                process = _started(_child, writer, seed, make)
                writer.close()
                running[reader] = (seed, process, time.monotonic() + timeout_s)
            if not running:
                return
            ready = wait(list(running), timeout=1.0)
            late = [reader for reader, (_, _, deadline) in running.items() if time.monotonic() > deadline]
            for reader in [*ready, *(one for one in late if one not in ready)]:
                ended, child, _ = running.pop(reader)
                yield _collect(reader, ended, child)
    finally:
        for _, child, _ in running.values():
            child.kill()
            child.join()


def _collect(reader: Connection, seed: int, process: BaseProcess) -> Outcome:
    if not reader.poll():
        process.kill()
        outcome = Outcome(seed, ok=False, error="Hung", message="the run took too long in real time")
    else:
        try:
            outcome = reader.recv()
        except EOFError:
            outcome = Outcome(seed, ok=False, error="Crashed", message="the child ended without a result")
    reader.close()
    process.join()
    return outcome
