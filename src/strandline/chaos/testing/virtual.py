"""Time and chance of ordinary code, taken over for one simulated run and given back after it.

Code under test reads `time.time()` and draws from `random` as it always does. While a run lasts, these answer from the
simulated world: the clocks of the machine in whose name the caller runs, and generators seeded by the run.

| taken over | what it is in a run |
|---|---|
| `time.time`, `time.monotonic`, `time.perf_counter`, and their `_ns` | the machine's wall and monotonic clock |
| `time.sleep` | the whole process stands still for so long |
| functions of `random`, `random.Random()` without a seed | seeded |
| `os.urandom`, and with it `uuid.uuid4`, `secrets`, `random.SystemRandom` | seeded |
| aiokafka's record timestamps (read in C) | the machine's wall clock |
| aiokafka's sets of topics, partitions and brokers | iterated in one order |

Names that a module has imported for itself (`from time import monotonic`) are found and replaced too. Other threads go
on with the real ones. Not taken over: `datetime.now()`, which is C and cannot be replaced.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from strandline.chaos.sim.clock import EPOCH_MS
from strandline.chaos.sim.process import current_process
from strandline.chaos.sim.seeds import split
from strandline.client.loop_thread import LoopThread

if TYPE_CHECKING:
    from strandline.chaos.sim.process import Process
    from strandline.chaos.sim.world import World

_LEFT_ALONE = frozenset(sys.stdlib_module_names - {"time", "random", "os"}) | {"_pytest", "pytest", "pluggy", "xdist"}
"""Top packages whose own imported names stay as they are: the interpreter's and the test runner's."""


class Readings:
    """Times that the clocks show to the caller."""

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self._asleep_until_us: dict[Process, int] = {}

    def _now_us(self) -> int:
        """World time; for a process that has slept in this callback, when it will have woken up."""
        owner = current_process()
        now_us = self._loop.now_us
        return now_us if owner is None else max(now_us, self._asleep_until_us.get(owner, 0))

    def wall_s(self) -> float:
        """`time.time`."""
        owner, now_us = current_process(), self._now_us()
        if owner is None:
            return EPOCH_MS / 1000 + now_us / 1e6
        clock = owner.machine.clock
        return (EPOCH_MS + now_us * clock.rate / 1000 + clock.wall_offset_ms) / 1000

    def monotonic_s(self) -> float:
        """`time.monotonic`: the same clock as the loop's `time()`."""
        owner, now_us = current_process(), self._now_us()
        return now_us / 1e6 if owner is None else owner.machine.clock.loop_time_s(now_us)

    def wall_ns(self) -> int:
        """`time.time_ns`."""
        return round(self.wall_s() * 1e6) * 1000

    def monotonic_ns(self) -> int:
        """`time.monotonic_ns`."""
        return round(self.monotonic_s() * 1e6) * 1000

    def sleep(self, duration_s: float) -> None:
        """`time.sleep`: nothing else of the process runs meanwhile."""
        if duration_s < 0:
            raise ValueError("sleep length must be non-negative")
        owner = current_process()
        if owner is not None:
            until_us = self._now_us() + round(duration_s * 1e6)
            self._asleep_until_us[owner] = until_us
            owner.stall(until_us - self._loop.now_us)


class Chance:
    """Generators for code that asks for one without a seed.

    Each is decided by who asks and for which time, not by what others drew before: modules draw when they are imported,
    and that is in the first run of a process alone.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._asked: Counter[tuple[str, str]] = Counter()

    def generator(self, asker: FrameType | None) -> random.Random:
        """Random generator for the function that runs in this frame."""
        where = ("", "")
        if asker is not None:
            where = (str(asker.f_globals.get("__name__")), asker.f_code.co_qualname)
        self._asked[where] += 1
        return split(self._seed, "user code", *where, self._asked[where])

    def urandom(self, size: int) -> bytes:
        """`os.urandom`."""
        return self.generator(sys._getframe(2)).randbytes(size)


@contextmanager
def taken_over(world: World) -> Iterator[None]:
    """Time and chance are those of `world` within the block; everything is as it was behind it."""
    readings = Readings(world)
    chance = Chance(world.seed)
    here = threading.get_ident()

    def here_only(virtual: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return virtual(*arguments) if threading.get_ident() == here else real(*arguments)

        return call

    replaced: dict[Any, Callable[..., Any]] = {
        time.time: readings.wall_s,
        time.time_ns: readings.wall_ns,
        time.monotonic: readings.monotonic_s,
        time.monotonic_ns: readings.monotonic_ns,
        time.perf_counter: readings.monotonic_s,
        time.perf_counter_ns: readings.monotonic_ns,
        time.sleep: readings.sleep,
        os.urandom: chance.urandom,
    }
    stand_ins = {real: here_only(virtual, real) for real, virtual in replaced.items()}
    state = random.getstate()
    with ExitStack() as undo:
        _import_if_there("aiokafka")
        for module in _modules():
            _replace_names(module, stand_ins, undo)
        _seed_new_generators(chance, undo)
        _give_aiokafka_the_time(readings, undo)
        _give_aiokafka_an_order(undo)
        _number_aiokafka_producers_anew(undo)
        _refuse_threads_of_clients(here, undo)
        undo.callback(random.setstate, state)
        random.seed(split(world.seed, "user code").getrandbits(64))
        yield


def _modules() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if module is not None and name.partition(".")[0] not in _LEFT_ALONE
    ]


def _replace_names(module: ModuleType, stand_ins: dict[Any, Any], undo: ExitStack) -> None:
    names = getattr(module, "__dict__", {})
    for name, value in list(names.items()):
        if type(value) is BuiltinFunctionType and value in stand_ins:
            names[name] = stand_ins[value]
            undo.callback(names.__setitem__, name, value)


def _seed_new_generators(chance: Chance, undo: ExitStack) -> None:
    """`random.Random()` seeds itself in C: give it a seed whenever the caller gives none."""
    init = random.Random.__init__
    here = threading.get_ident()
    busy = False

    def seeded(self: random.Random, x: Any = None) -> None:
        nonlocal busy
        if x is None and not busy and threading.get_ident() == here:
            busy = True  # a generator's own seed comes from a generator
            try:
                x = chance.generator(sys._getframe(1)).getrandbits(64)
            finally:
                busy = False
        init(self, x)

    random.Random.__init__ = seeded  # type: ignore[method-assign]
    undo.callback(setattr, random.Random, "__init__", init)


def _give_aiokafka_the_time(readings: Readings, undo: ExitStack) -> None:
    """Give aiokafka's builder of record batches the time: it asks the C library for the time of a record that has
    none."""
    accumulator = sys.modules.get("aiokafka.producer.message_accumulator")
    if accumulator is None:
        return
    builder: Any = accumulator.BatchBuilder
    append = builder.append

    def with_time(self: Any, *, timestamp: int | None, **fields: Any) -> Any:
        return append(self, timestamp=readings.wall_ns() // 1_000_000 if timestamp is None else timestamp, **fields)

    builder.append = with_time
    undo.callback(setattr, builder, "append", append)


class _InOrder(set[Any]):
    """A set that is iterated in one order in every process."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=repr))


class _FrozenInOrder(frozenset[Any]):
    """Set like `_InOrder`, frozen."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=repr))


def _give_aiokafka_an_order(undo: ExitStack) -> None:
    """Give aiokafka an order of its sets of topics, partitions and brokers. Their hashes (of texts, and of `None`
    before 3.12) are others in each process, and so would be the order of its requests."""
    for name, kind, in_order in (
        ("client", "set", _InOrder),
        ("cluster", "set", _InOrder),
        ("consumer.fetcher", "set", _InOrder),
        ("consumer.subscription_state", "frozenset", _FrozenInOrder),
    ):
        module = sys.modules.get(f"aiokafka.{name}")
        if module is not None:
            module.__dict__[kind] = in_order
            undo.callback(module.__dict__.pop, kind)


def _number_aiokafka_producers_anew(undo: ExitStack) -> None:
    """Number aiokafka's producers anew: their default ids are numbers of a counter that would go on from run to run."""
    module = sys.modules.get("aiokafka.producer.producer")
    if module is not None:
        kind: Any = module.AIOKafkaProducer
        undo.callback(setattr, kind, "_PRODUCER_CLIENT_ID_SEQUENCE", kind._PRODUCER_CLIENT_ID_SEQUENCE)
        kind._PRODUCER_CLIENT_ID_SEQUENCE = 0


def _refuse_threads_of_clients(here: int, undo: ExitStack) -> None:
    """The blocking client would wait for nodes that its thread cannot reach: until its timeouts, in real seconds."""
    init = LoopThread.__init__

    def refuse(self: LoopThread, *arguments: Any, **named: Any) -> None:
        if threading.get_ident() == here:
            raise RuntimeError(
                "the blocking strandline.client has a thread of its own, which virtual time does not reach: in a "
                "simulated run use strandline.client.aio; strandline_cluster takes any client"
            )
        init(self, *arguments, **named)

    LoopThread.__init__ = refuse  # type: ignore[method-assign]
    undo.callback(setattr, LoopThread, "__init__", init)


def _import_if_there(name: str) -> None:
    """Import what the code under test may import in the middle of the run, for it must be replaced before."""
    if name not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is not None:
        importlib.import_module(name)
