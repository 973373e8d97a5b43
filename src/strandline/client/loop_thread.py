"""A thread with an event loop: how the blocking classes run the asynchronous ones.

It refuses what would hang for ever (schedule 67): a call that waits for it, made on it by a callback;
and any call in a forked child, where the thread is not.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from strandline.client.errors import ClientError, ClosedError

T = TypeVar("T")

OF_THE_PARENT = (
    "this client belongs to the parent of this process, with its connections: they cannot be shared. "
    "Make one here, in the child"
)


def refused(call: str) -> ClientError:
    """The error of a call that would wait for the very thread that makes it."""
    return ClientError(
        f"{call} waits for the client's own thread, and was called on it, by a callback: it would wait for ever. "
        "A callback notes what happened (queue.Queue, threading.Event), and the client is called from another thread"
    )


class Calls:
    """Functions that coroutines on the loop want called by the thread that waits for them."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Callable[[], object], asyncio.Future[None]] | None] = SimpleQueue()

    async def ask(self, function: Callable[[], object]) -> None:
        """On the loop: have it called; raises what it raises, and CancelledError when that ends the waiting thread's
        call (KeyboardInterrupt, SystemExit)."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.put((function, done))
        await done

    def end(self) -> None:
        """Nobody asks any more."""
        self._asked.put(None)

    def answer(self) -> None:
        """In the waiting thread: call what is asked for, until `end`."""
        while (asked := self._asked.get()) is not None:
            function, done = asked
            try:
                function()
            except Exception as error:  # it belongs to the coroutine, which ends with it
                done.get_loop().call_soon_threadsafe(_settle, done, error)
            except BaseException:  # Ctrl-C, sys.exit: the thread's own; on the loop it would end the loop
                done.get_loop().call_soon_threadsafe(done.cancel)
                raise
            else:
                done.get_loop().call_soon_threadsafe(_settle, done, None)


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


class LoopThread:
    """One daemon thread that runs one event loop until `stop`. Belongs to the process that made it.

    Every call raises ClosedError after `stop`, and in a forked child; ClientError on this very thread.
    """

    def __init__(self, name: str) -> None:
        self.orphaned = False
        """This process is a forked child: the thread stayed with the parent."""
        _living.add(self)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this very thread (a callback), where blocking would block itself."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop; its result."""

        async def run() -> T:
            return function()

        return self.wait(run())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; its result. An interrupt of the caller (Ctrl-C) cancels it."""
        future = self._begin(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def closed(self) -> bool:
        """It was stopped; in a forked child it counts as that."""
        return self.loop.is_closed() or self.orphaned

    def serve(self, coroutine: Coroutine[Any, Any, T], calls: Calls, lost: Callable[[T], None] | None = None) -> T:
        """As `wait`, and what the coroutine asks of `calls` meanwhile is done here, by the waiting thread.

        Args:
            lost: given the result, where the caller is interrupted when the coroutine has ended already.
        """
        future = self._begin(coroutine)
        future.add_done_callback(lambda _: calls.end())
        try:
            calls.answer()
            return future.result()
        except BaseException:
            if not future.cancel() and lost is not None and future.exception() is None:
                lost(future.result())
            raise

    def stop(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Run `farewell`, cancel what is left, end the thread. Idempotent; nothing in a forked child.

        Raises:
            ClientError: on this very thread.
        """
        if self.closed:
            return
        if self.is_current:
            raise refused("close")

        async def leave() -> None:
            try:
                await farewell()
            finally:
                rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
                for task in rest:
                    task.cancel()
                if rest:
                    await asyncio.wait(rest)

        try:
            self.wait(leave())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if self.closed or self.is_current:
            coroutine.close()
            if self.orphaned:
                raise ClosedError(OF_THE_PARENT)
            raise ClosedError("this client is closed") if self.closed else refused("this call")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_living: weakref.WeakSet[LoopThread] = weakref.WeakSet()
of_parents: list[object] = []
"""Kept for ever: collecting a parent's loop, tasks or connections in the child would close what both share."""


def _after_fork() -> None:
    for thread in list(_living):
        thread.orphaned = True
        of_parents.append(thread)
    _living.clear()


os.register_at_fork(after_in_child=_after_fork)
