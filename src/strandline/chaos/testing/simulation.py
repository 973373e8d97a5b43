"""The fixture `strandline_sim`: the user's code and a cluster of production nodes in one simulated world.

A run ends with nothing left of it: time and chance are given back, structlog's configuration and the garbage
collector are as they were, and what still ran in the world never runs again.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

import strandline
from strandline.chaos.cluster import SimCluster
from strandline.chaos.logs import LogCapture
from strandline.chaos.sim.disk import DiskConfig
from strandline.chaos.sim.links import NetworkConfig
from strandline.chaos.sim.ports import Ports
from strandline.chaos.sim.process import Process
from strandline.chaos.sim.seeds import split
from strandline.chaos.sim.world import World, WorldConfig
from strandline.chaos.testing.env import Env, Main
from strandline.chaos.testing.faults import SimFaults
from strandline.chaos.testing.requested import as_texts, check_met
from strandline.chaos.testing.virtual import taken_over

APP = "app"
"""The machine that `main` runs on."""

READY_MS = 60_000.0
TIMEOUT_S = 600.0
POLL_MS = 5.0
LOG_LINES = 60
"""Last log lines of the nodes shown among the faults of a failed run."""


class RunFailed(AssertionError):
    """The run itself failed, not an assertion of the test: see the message."""


class Simulation:
    """One seed of one test.

    Attributes:
        seed: decides every delay, every interleaving and every draw.
        nodes, settings: what `run` takes where it is not told otherwise.
        runs: of this test, for its report.
    """

    def __init__(self, seed: int, *, nodes: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.seed = seed
        self.nodes = nodes
        self.settings = as_texts(settings)
        self.runs: list[SimRun] = []

    def run(
        self,
        main: Main,
        *,
        nodes: int | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """Start a cluster, run `main(env)` beside it under virtual time, and return what it returns.

        Args:
            main: an async function; all that it does is decided by the seed.
            nodes: of the cluster; each is broker and controller.
            settings: of every node, by Kafka's names.
            timeout_s: virtual seconds that `main` may take.

        Raises:
            RunFailed: `main` did not end in time, or is no async function; a task died and nobody looked at it; a node
                fell.
            FaultNeverStruck: a fault was asked for that nothing met.
            Exception: whatever `main` raises.
        """
        __tracebackhide__ = True  # pytest shows the frames of the test, not ours
        run = SimRun(self.seed, nodes or self.nodes, {**self.settings, **as_texts(settings)})
        self.runs.append(run)
        return run.execute(main, timeout_s)


class SimRun:
    """One run of one seed."""

    def __init__(self, seed: int, nodes: int, settings: Mapping[str, str]) -> None:
        self.seed = seed
        self.world = World(seed, draw(seed))
        given = {"strandline.fault.injection": "true", **settings}
        self.cluster = SimCluster(self.world, given, size=nodes)
        self.world.add_machine(APP)
        self.faults = SimFaults(self.world, self.cluster, split(seed, "faults"))
        self._logs: list[tuple[int, str]] = []

    def execute(self, main: Main, timeout_s: float) -> Any:
        """Run as `Simulation.run` does."""
        __tracebackhide__ = True
        _no_loop_runs()
        if not callable(main):
            raise TypeError(f"run takes an async function, run(main), and calls it with env; not {main!r}")
        self.world.loop.observe = self._look
        try:
            with _logs_of(self.world, self._logs), taken_over(self.world):
                result = self.world.run(self._scenario(main, timeout_s))
        except BaseException as error:
            own = isinstance(error, RunFailed)
            raise error.with_traceback(None if own else _of_the_test(error.__traceback__)) from error.__cause__
        check_met(self.faults.asked)
        return result

    async def _scenario(self, main: Main, timeout_s: float) -> Any:
        for name in self.cluster.names:
            self.cluster.start(name)
        await self.cluster.wait_ready(READY_MS)
        env = Env(self.world, self.cluster, self.faults, split(self.seed, "test"))
        self.faults.note("the cluster is ready: main begins")

        async def run(_ports: Ports) -> Any:
            began = main(env)
            if not inspect.isawaitable(began):
                raise RunFailed(f"main is not an async function: it returned {began!r}")
            return await began

        process = self.world.spawn(APP, run)
        task = process.main
        assert task is not None
        deadline_ms = self.world.now_ms + timeout_s * 1000
        while not task.done():
            if self.world.now_ms > deadline_ms:
                raise RunFailed(
                    f"main has not ended within {timeout_s:g} s of virtual time; it stands at\n{_where(task)}"
                )
            await self.world.sleep_ms(POLL_MS)
        self.faults.note("main has ended")
        result = task.result()
        self._check_unheard([_error_of(process), *env.heard])
        return result

    def _look(self) -> None:
        if self.cluster.fallen:
            raise RunFailed(f"a node of Strandline fell, which it must never do: {self.cluster.fallen[0]}")

    def _check_unheard(self, heard: Sequence[BaseException | None]) -> None:
        """Raise errors that the test has not looked at."""
        for context in self.world.loop.unhandled:
            error = context.get("exception")
            if error is not None and not any(error is each for each in heard):
                what = (
                    f"{context.get('message')}: {error!r}, at {context['at_us'] / 1e6:.3f} s on {context.get('owner')}"
                )
                raise RunFailed(f"nobody looked at an error: {what}") from error

    def timeline(self) -> list[tuple[int, str]]:
        """(virtual ms, what): faults and notes, among the nodes' last log lines."""
        return sorted([*self.faults.timeline, *self._logs[-LOG_LINES:]], key=lambda line: line[0])


def draw(seed: int) -> WorldConfig:
    """The healthy world of a seed: how quick its network and disks are, how far its clocks are apart."""
    rng = split(seed, "world")
    network = NetworkConfig(
        latency_min_us=50,
        latency_max_us=rng.choice((300, 1_000, 10_000)),
        fragment_probability=rng.choice((0.0, 0.05, 0.3)),
        coalesce_probability=rng.choice((0.0, 0.05, 0.3)),
    )
    disk = DiskConfig(sync_max_us=rng.choice((500, 4_000, 20_000)))
    return WorldConfig(network, disk, clock_rate_error=rng.choice((0.0, 0.001, 0.01)), wall_error_ms=500.0)


def _no_loop_runs() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("strandline_sim.run() has an event loop of its own: call it from a plain (not async) test")


@contextmanager
def _logs_of(world: World, lines: list[tuple[int, str]]) -> Iterator[None]:
    """Keep what is logged through structlog; its configuration is as it was behind the block."""
    configured, before = structlog.is_configured(), structlog.get_config()
    capture = LogCapture(lambda: world.now_ms)
    try:
        yield
    finally:
        lines.extend(capture.lines)
        capture.end()
        if configured:
            structlog.configure(**before)
        else:
            structlog.reset_defaults()


def _error_of(process: Process) -> BaseException | None:
    task = process.main
    return task.exception() if task is not None and task.done() and not task.cancelled() else None


def _of_the_test(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that belongs neither to Strandline nor to asyncio; the whole one if there is
    none."""
    ours = (str(Path(strandline.__file__).parent), str(Path(asyncio.__file__).parent))
    rest = traceback
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(ours):
        rest = rest.tb_next
    return rest or traceback


def _where(task: asyncio.Task[Any]) -> str:
    """The calls in which a task waits, the test's first: `Task.get_stack` knows of the outermost alone."""
    calls: list[tuple[str, int, str, None]] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is None:
            break
        calls.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname, None))
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return "".join(traceback.StackSummary.from_list(calls[1:]).format())  # the first is the caller of `main`, here
