"""Threads of a simulated process, for our blocking clients: real ones, of which one runs at a time.

A *caller* is a thread that calls a blocking client. The client's own thread is the loop of the simulation. Whoever runs
gives way to the other when it waits, and where the seed says, at the points at which CPython itself may switch threads
or call a signal's handler: behind calls of C functions, at the begin of Python's, where a loop goes back. Those points
count that lie in `strandline.client`, where the state is that both share.

- A caller is interrupted (KeyboardInterrupt, as by Ctrl-C) at such a point, or while it waits.
- The loop is stopped in the midst of a callback, and a caller that waits for its turn runs meanwhile.

`threads_of_clients` puts queues, locks and threads of this module into the blocking clients' modules. Nothing else of
them is changed. What it does not have: two threads in one C function, and memory seen late: no GIL allows these.
"""

from __future__ import annotations

import asyncio
import contextvars
import dis
import inspect
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from types import CodeType, FrameType
from typing import Any, TypeVar

import strandline.client
from strandline.chaos.sim.handles import THREAD, SimHandle, SimTask
from strandline.chaos.sim.loop import SimLoop
from strandline.chaos.sim.process import Process, current_process
from strandline.client import admin as blocking_admin
from strandline.client import consumer as blocking_consumer
from strandline.client import loop_thread, open_batches_python, producer_batch, sender
from strandline.client import producer as blocking_producer
from strandline.client.session import Session
from strandline.client.unclosed import nothing

T = TypeVar("T")

_WHERE = str(Path(strandline.client.__file__).parent)
_CALLS = frozenset({"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"})
_TURN_MAX_US = 100
"""Maximum microseconds until a ready thread gets its turn, on a machine with free CPU time."""
_TRACED_SHARE = 0.3
"""Share of the loop's callbacks in which it may be stopped. To look at each instruction takes its time."""
_AGAIN_SHARE = 0.2
"""Share of the interrupts that are followed by another one soon."""
_SOON_POINTS = 40


class Stuck(RuntimeError):
    """The loop waits for a lock whose owner waits for the loop."""


class Threads:
    """All threads of one process.

    Attributes:
        clock, rng: of the process.
        current: the caller that runs; None: the loop does.
    """

    def __init__(
        self, loop: SimLoop, process: Process, *, clock: Any, rng: random.Random, switch_points: int | None
    ) -> None:
        """`switch_points`: average number of switch points after which a thread gives way to another one. None: only
        where it waits; the code is then not traced."""
        self.loop = loop
        self.process = process
        self.clock = clock
        self.rng = rng
        self.current: Caller | None = None
        self.switches = 0
        self.interrupts = 0
        self.callers: list[Caller] = []
        self._switch_points = switch_points
        self._left = self.next_switch()
        self._back = threading.Lock()
        self._back.acquire()

    def next_switch(self) -> int:
        """Points until the next one."""
        return 1 + int(self.rng.expovariate(1 / (self._switch_points or 1)))

    @property
    def is_traced(self) -> bool:
        """True if threads give way elsewhere than where they wait."""
        return self._switch_points is not None

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread of its own, and return its result."""
        caller = Caller(self, function)
        self.callers.append(caller)
        caller.queue_up()
        await caller.ended.wait()
        self.callers.remove(caller)
        if caller.error is not None:
            raise caller.error
        return caller.result[0]  # type: ignore[no-any-return]

    # --- on the loop ---

    def turn(self, caller: Caller) -> None:
        """Let the caller run, on the loop, until it waits, gives way or ends."""
        caller.turn = None
        before, self.current = self.current, caller
        caller.go.release()
        self._back.acquire()
        self.current = before

    def give_back(self) -> None:
        """Let the loop go on, from a caller."""
        self._back.release()

    def run_callback(self, run: Callable[[], None], thread: object | None) -> None:
        """Run a callback of the process on the loop; sometimes others have their turn in its midst. What is of a
        client's `thread` that has ended is called by nobody."""
        if isinstance(thread, TwinLoop) and thread.is_closed():
            return
        if not self.callers or not self.is_traced or self.rng.random() >= _TRACED_SHARE:
            run()
            return
        before = sys.gettrace()
        sys.settrace(_tracer(self._point))
        try:
            run()
        finally:
            sys.settrace(before)

    def within_a_call(self) -> None:
        """True in a function of Python's that the client calls, and that is none of the client's: a point of the
        caller."""
        if self.current is not None and self.is_traced:
            self.current.point()

    def _point(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._left = self.next_switch()
            self.let_another_run()

    def let_another_run(self) -> bool:
        """Let a caller run that is ready, on the loop in the midst of a callback; returns whether there was one."""
        ready = [caller for caller in self.callers if caller.turn is not None]
        if not ready:
            return False
        caller = self.rng.choice(ready)
        assert caller.turn is not None
        caller.turn.cancel()
        self.switches += 1
        self.turn(caller)
        return True


class Caller:
    """A thread that calls blocking clients."""

    def __init__(self, threads: Threads, function: Callable[[], Any]) -> None:
        self.threads = threads
        self.turn: SimHandle | None = None
        """Handle of its next turn, when it is ready to run."""
        self.go = threading.Lock()
        self.go.acquire()
        self.ended = asyncio.Event()
        self.result: list[Any] = []
        self.error: BaseException | None = None
        self._waits = False
        self._armed = False
        self._interrupted = False
        self._until_interrupt = -1
        self._left = threads.next_switch()
        self._trace = _tracer(self.point)
        context = threads.process.context.copy()
        self._thread = threading.Thread(target=context.run, args=(self._main, function), daemon=True)
        self._thread.start()

    def _main(self, function: Callable[[], Any]) -> None:
        self.go.acquire()
        sys.settrace(self._trace if self.threads.is_traced else None)
        try:
            self.result.append(function())
        except BaseException as error:  # it belongs to whoever has begun the thread
            self.error = error
        finally:
            sys.settrace(None)
        self.threads.loop.call_soon(self.ended.set)
        self.threads.give_back()

    def ready(self) -> None:
        """Wake the thread, if it waits."""
        if self._waits:
            self._waits = False
            self.queue_up()

    def queue_up(self) -> None:
        """Queue the thread's next turn."""
        loop = self.threads.loop
        due_us = loop.now_us + self.threads.rng.randint(0, _TURN_MAX_US)
        self.turn = loop.call_at_us(due_us, self.threads.turn, self, context=self.threads.process.context)

    # --- in the thread itself ---

    def _stop(self) -> None:
        """Block the thread until its next turn."""
        self.threads.give_back()
        self.go.acquire()
        if sys.gettrace() is None and self.threads.is_traced:  # an exception that came out of the tracing has ended it
            _trace_again(self._trace, sys._getframe())

    def wait(self, timeout_s: float | None, *, deaf: bool = False) -> bool:
        """Wait until somebody calls `ready`, or until the timeout. Returns True if somebody did. May raise
        KeyboardInterrupt; with `deaf` that is raised by a later call."""
        if not deaf:
            self._raise_interrupt()
        self._waits = True
        timer = None
        timed_out: list[None] = []
        if timeout_s is not None:

            def late() -> None:
                if self._waits:
                    timed_out.append(None)
                    self.ready()

            timer = self.threads.loop.call_later(max(timeout_s, 0.0), late)
        self._stop()
        if timer is not None:
            timer.cancel()
        if not deaf:
            self._raise_interrupt()
        return not timed_out

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""
        self.wait(duration_s)

    def point(self) -> None:
        """CPython may switch here, or call a handler."""
        if self._armed:
            self._until_interrupt -= 1
            if self._until_interrupt == 0:
                self._interrupted = True
            self._raise_interrupt()
        self._left -= 1
        if self._left <= 0:
            self._left = self.threads.next_switch()
            self.threads.switches += 1
            self.queue_up()
            self._stop()
            self._raise_interrupt()

    # --- interrupts ---

    def arm(self, points: int | None, after_s: float) -> None:
        """Interrupt the thread after `points` switch points, or, if None, after `after_s` seconds, wherever it is
        then."""
        self._armed, self._interrupted, self._until_interrupt = True, False, -1
        if points is not None:
            self._until_interrupt = points
        else:
            self.threads.loop.call_later(after_s, self._interrupt)

    def disarm(self) -> None:
        """Note that the call that might be interrupted has ended."""
        self._armed = self._interrupted = False

    def _interrupt(self) -> None:
        """Interrupt it, on the loop."""
        if self._armed:
            self._interrupted = True
            if self._waits:
                self.ready()

    def _raise_interrupt(self) -> None:
        if not self._interrupted:
            return
        self._interrupted = False
        self.threads.interrupts += 1
        again = self.threads.rng.random() < _AGAIN_SHARE
        self._until_interrupt = self.threads.rng.randint(1, _SOON_POINTS) if again else -1
        raise KeyboardInterrupt


# --- where CPython may switch ----------------------------------------------------------------------------------------


@cache
def _behind(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions behind which it may."""
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname in _CALLS)


def _tracer(point: Callable[[], None]) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that calls `point` at each of them, in functions of the client."""

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        code, back = frame.f_code, frame.f_back
        if back is not None and isinstance(back.f_trace, _Local):
            back.f_trace.entered = True
        if not code.co_filename.startswith(_WHERE) or not code.co_flags & inspect.CO_OPTIMIZED:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "call":
            point()
        return _Local(frame, point)

    return trace


class _Local:
    """The trace function of one frame."""

    __slots__ = ("_behind", "_last", "_point", "entered")

    def __init__(self, frame: FrameType, point: Callable[[], None]) -> None:
        self._behind = _behind(frame.f_code)
        self._last = frame.f_lasti
        self._point = point
        self.entered = False
        """The last call was one of a Python function: CPython looks at its begin, and not behind its end."""

    def __call__(self, frame: FrameType, event: str, _argument: object) -> _Local:
        if event == "opcode":
            was, self._last = self._last, frame.f_lasti
            entered, self.entered = self.entered, False
            if was in self._behind and not entered:
                self._point()
        return self


def _trace_again(trace: Callable[[FrameType, str, Any], Any], innermost: FrameType | None) -> None:
    sys.settrace(trace)
    frame = innermost
    while frame is not None:
        local = trace(frame, "again", None)
        if local is not None:
            frame.f_trace = local
        frame = frame.f_back


# --- what the clients' modules get ---------------------------------------------------------------------------------


def current_threads() -> Threads | None:
    """Threads of the process in whose name the caller runs."""
    process = current_process()
    return None if process is None else process.threads


class Queue:
    """Queue like `queue.SimpleQueue`."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._items: deque[Any] = deque()
        self._waiting: deque[Caller] = deque()

    def put(self, item: Any) -> None:
        """Wake one who waits."""
        self._items.append(item)
        while self._waiting:
            self._waiting.popleft().ready()

    def get(self, timeout: float | None = None) -> Any:
        """The next item. Raises Empty."""
        caller = self._threads.current
        while not self._items:
            if caller is None:
                raise Stuck("the loop waits for a queue")
            self._waiting.append(caller)
            try:
                came = caller.wait(timeout)
            finally:
                if caller in self._waiting:
                    self._waiting.remove(caller)
            if not came and not self._items:
                raise Empty
        return self._items.popleft()


class Lock:
    """Lock like `threading.Lock`, and like `threading.RLock` where its owner may take it again."""

    def __init__(self, threads: Threads, *, again: bool = False) -> None:
        self._threads = threads
        self._again = again
        self._depth = 0
        self._owner: Caller | None = None
        self._waiting: deque[Caller] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Whether it was taken."""
        me = self._threads.current
        while self._depth and not (self._again and self._owner is me):
            if not blocking:
                return False
            if me is None:
                self._let_the_owner_run()
                continue
            self._waiting.append(me)
            try:
                came = me.wait(None if timeout < 0 else timeout)
            finally:
                if me in self._waiting:
                    self._waiting.remove(me)
            if not came and self._depth:
                return False
        self._depth += 1
        self._owner = me
        return True

    def release(self) -> None:
        """Wake those who wait."""
        if not self._depth:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        while not self._depth and self._waiting:
            self._waiting.popleft().ready()

    def _is_owned(self) -> bool:
        """Whether the caller has it; these three as `threading.Condition` uses them."""
        return bool(self._depth) and self._owner is self._threads.current

    def _release_save(self) -> int:
        """Give it up, however often it was taken."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        """Acquire it as deep as before. No interrupt comes in between."""
        me = self._threads.current
        while self._depth:
            if me is None:
                self._let_the_owner_run()
            else:
                self._waiting.append(me)
                me.wait(None, deaf=True)
                if me in self._waiting:
                    self._waiting.remove(me)
        self._depth, self._owner = depth, me

    def _let_the_owner_run(self) -> None:
        """Let the owner run, on the loop."""
        if not self._threads.let_another_run():
            raise Stuck("the loop waits for a lock whose owner waits")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class TwinLoop:
    """The loop of one blocking client: what `LoopThread` needs of it, upon the loop of the simulation."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._closed = False
        self._ended = _queue()
        self.thread: TwinThread | None = None

    def call_soon_threadsafe(self, callback: Callable[..., Any], *arguments: Any) -> SimHandle:
        """Call soon, from any thread. Raises RuntimeError once it is closed."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        context = contextvars.copy_context()
        context.run(THREAD.set, self)
        return self._loop.call_soon_threadsafe(callback, *arguments, context=context)

    def create_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """One of this client's."""
        return self._loop.create_task(coroutine)

    def tasks(self) -> set[asyncio.Task[Any]]:
        """Tasks that are not done."""
        every = asyncio.all_tasks(self._loop)
        return {task for task in every if isinstance(task, SimTask) and task.thread is self}

    def set_exception_handler(self, handler: object) -> None:
        """Do nothing: the loop of the simulation has one."""

    def stop(self) -> None:
        """Close it after this turn, as the thread of a client does then; the loop of the simulation goes on."""
        self._loop.call_soon(self._close)

    def _close(self) -> None:
        """Close the loop: no callback is called any more."""
        self._closed = True
        self._ended.put(None)

    def join(self) -> None:
        """Return when it is closed."""
        while not self._closed:
            self._ended.get()
        self._ended.put(None)  # for the next one

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed


class TwinThread:
    """The thread of one blocking client, which is the simulation's own."""

    def __init__(self, *, target: Any, name: str, daemon: bool) -> None:
        self._loop: TwinLoop = target.__self__.loop
        self._loop.thread = self
        self.name = name
        self.daemon = daemon

    def start(self) -> None:
        """Do nothing: it runs already."""

    def join(self) -> None:
        """Return when it has ended."""
        self._loop.join()


class _Threading:
    """Replacement of the module `threading`."""

    @staticmethod
    def Lock() -> Any:
        threads = current_threads()
        return threading.Lock() if threads is None else Lock(threads)

    @staticmethod
    def RLock() -> Any:
        threads = current_threads()
        return threading.RLock() if threads is None else Lock(threads, again=True)

    Thread = TwinThread

    @staticmethod
    def current_thread() -> Any:
        threads = current_threads()
        if threads is None:
            return threading.current_thread()
        twin = THREAD.get()
        return threads.current or (twin.thread if isinstance(twin, TwinLoop) else threads)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class _Asyncio:
    """Replacement of the module `asyncio`, where a thread is made for a loop."""

    @staticmethod
    def new_event_loop() -> TwinLoop:
        threads = current_threads()
        if threads is None:
            raise RuntimeError("a blocking client of a process without threads: `await threads.run(function)`")
        return TwinLoop(threads.loop)

    @staticmethod
    def all_tasks() -> set[asyncio.Task[Any]]:
        twin = THREAD.get()
        return twin.tasks() if isinstance(twin, TwinLoop) else set()

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


def _queue() -> Any:
    threads = current_threads()
    return SimpleQueue() if threads is None else Queue(threads)


def _session(*arguments: Any, **named: Any) -> Session:
    threads = current_threads()
    return (
        Session(*arguments, **named)
        if threads is None
        else Session(*arguments, clock=threads.clock, rng=threads.rng, **named)
    )


def _unwatched(*_: object) -> Callable[[], None]:
    """Nobody ends a client when the program does: here it never does."""
    return nothing


@contextmanager
def threads_of_clients() -> Iterator[None]:
    """Within, blocking clients of processes that have `Threads` use these; all others are as they were."""
    with ExitStack() as undo:
        for module, name, stand_in in (
            (loop_thread, "asyncio", _Asyncio()),
            (loop_thread, "threading", _Threading()),
            (loop_thread, "SimpleQueue", _queue),
            (sender, "threading", _Threading()),
            (producer_batch, "threading", _Threading()),
            (open_batches_python, "threading", _Threading()),
            (blocking_producer, "threading", _Threading()),
            (blocking_producer, "Session", _session),
            (blocking_producer, "watch", _unwatched),
            (blocking_consumer, "watch", _unwatched),
            (blocking_admin, "watch", _unwatched),
        ):
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, stand_in)
        yield
