"""The search in several processes, each with states of its own."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lab.explore.model import Model
from lab.explore.search import Broken, Found, Level, Limits, Shard, chain, memory_mb, reached, search

_FORK = multiprocessing.get_context("fork")
_STATES, _STEPS, _STOP, _KB = range(4)
_FIELDS = 4
_LOOK_S = 0.2
"""Seconds between two looks at the progress."""


def explore(model: Model, limits: Limits, *, jobs: int = 1, on_level: Any = None) -> Found:
    """Search with `jobs` processes. Which of several counterexamples of one depth is found depends on their number,
    and on nothing else."""
    if jobs == 1:
        return search(model, limits, on_level)
    with tempfile.TemporaryDirectory(prefix="strandline-explore-") as spool:
        crew = _WorkerPool(model, jobs, Path(spool))
        try:
            return crew.search(limits, on_level)
        finally:
            crew.dismiss()


class _WorkerPool:
    """The processes, and what they have counted: (states, steps, stop, KB) each."""

    def __init__(self, model: Model, jobs: int, spool: Path) -> None:
        self._counts = _FORK.RawArray("Q", _FIELDS * jobs)
        self._pipes: list[Connection] = []
        self._processes = []
        for index in range(jobs):
            ours, theirs = _FORK.Pipe()
            shard = Shard(model, index, jobs, spool)
            process = _FORK.Process(target=_work, args=(theirs, shard, index, self._counts), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def search(self, limits: Limits, on_level: Any) -> Found:
        began = time.monotonic()
        self._all("begin")
        found = Found([], self._sum(_STATES), 0, 0.0, complete=False)
        ahead = sum(self._all("ahead"))
        while ahead:
            depth = len(found.levels)
            found.memory_mb = self._sum(_KB) / 1024
            found.stopped = self._reached(limits, depth, began)
            if found.stopped:
                return found

            def watch(depth: int = depth, ahead: int = ahead) -> None:
                if on_level is not None:
                    on_level(depth, ahead, self._sum(_STATES), self._sum(_STEPS))
                found.stopped = found.stopped or self._reached(limits, depth, began)
                if found.stopped:
                    self._stop()

            broken = [one for one in self._all("expand", watch) if one is not None]
            found.states, found.steps, found.seconds = self._sum(_STATES), self._sum(_STEPS), time.monotonic() - began
            found.memory_mb = self._sum(_KB) / 1024
            if broken:
                met, violation = broken[0]
                found.stopped = ""
                found.broken = Broken(violation, chain(met, self._parent))
                return found
            if found.stopped:
                return found
            self._all("hand over", depth)
            self._all("take over", depth)
            found.states = self._sum(_STATES)
            found.levels.append(Level(depth, ahead, found.states, found.steps, time.monotonic() - began))
            ahead = sum(self._all("ahead"))
        found.complete = True
        return found

    def _reached(self, limits: Limits, depth: int, began: float) -> str:
        seconds = time.monotonic() - began
        return reached(limits, depth, self._sum(_STATES), seconds, self._sum(_KB) / 1024)

    def _all(self, order: str, *args: Any) -> list[Any]:
        """Every process does it; their answers."""
        watch: Callable[[], None] | None = args[0] if args and callable(args[0]) else None
        for pipe in self._pipes:
            pipe.send((order, *(arg for arg in args if not callable(arg))))
        answers = []
        for pipe in self._pipes:
            while not pipe.poll(_LOOK_S):
                if watch is not None:
                    watch()
            ok, answer = pipe.recv()
            if not ok:
                raise RuntimeError(f"a process of the search failed:\n{answer}")
            answers.append(answer)
        return answers

    def _parent(self, met: int) -> int | None:
        found: int = next(parent for parent in self._all("parent", met) if parent is not None)
        return found

    def _sum(self, which: int) -> int:
        return sum(self._counts[which::_FIELDS])

    def _stop(self) -> None:
        for index in range(len(self._pipes)):
            self._counts[_FIELDS * index + _STOP] = 1

    def dismiss(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _work(pipe: Connection, shard: Shard, index: int, counts: Any) -> None:
    """One process: does what it is asked until nobody is there any more."""
    import gc
    import traceback

    gc.freeze()
    try:
        while True:
            order, *args = pipe.recv()
            try:
                pipe.send((True, _obey(shard, order, args, counts, index)))
            except Exception:
                pipe.send((False, traceback.format_exc()))
    except (EOFError, KeyboardInterrupt):
        os._exit(0)


def _obey(shard: Shard, order: str, args: list[Any], counts: Any, index: int) -> Any:
    answer: Any = None
    if order == "begin":
        shard.begin()
    elif order == "ahead":
        answer = shard.ahead
    elif order == "expand":
        for _ in shard.expand():
            _count(shard, counts, index)
            if any(counts[_STOP::_FIELDS]):
                break
        if shard.broken is not None:
            answer = shard.broken
            for other in range(len(counts) // _FIELDS):
                counts[_FIELDS * other + _STOP] = 1
    elif order == "hand over":
        shard.hand_over(args[0])
    elif order == "take over":
        shard.take_over(args[0])
        shard.turn()
    else:
        answer = shard.parent(args[0])
    _count(shard, counts, index)
    return answer


def _count(shard: Shard, counts: Any, index: int) -> None:
    at = _FIELDS * index
    counts[at + _STATES], counts[at + _STEPS] = shard.states, shard.steps
    counts[at + _KB] = int(memory_mb() * 1024)
