"""The blocking admin client: the operations of the asynchronous one, on a thread of its own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Self, TypeVar, Unpack

from strandline.client.aio.admin import Operations
from strandline.client.aio.admin_base import Waiting
from strandline.client.loop_thread import LoopThread, end_unless
from strandline.client.session import Session
from strandline.client.settings import AdminSettings
from strandline.client.unclosed import nothing, watch

T = TypeVar("T")


class Admin(Operations, Waiting):
    """Describes and changes a cluster. May be shared by threads, and in the child of a fork starts anew.

    Every method does and raises what its twin in `strandline.client.aio.Admin` does.
    """

    def __init__(self, bootstrap: str | Sequence[str] = "127.0.0.1:9092", **settings: Unpack[AdminSettings]) -> None:
        super().__init__(bootstrap, **settings)
        self._thread: LoopThread | None = None
        self._watched: Callable[[], None] = nothing
        _admins.add(self)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._thread is not None:
            self._thread.stop(self.session.close)
            self._watched()
            self._thread.raise_left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Run the coroutine that `begin` makes on the client's thread; its result."""
        if self._thread is None:
            made: list[LoopThread] = []
            try:
                thread = LoopThread("strandline-admin", made)
                watched = watch(self, "an Admin", thread, partial(thread.stop, self.session.close))
                if self._thread is None:  # else another thread, or a signal's handler, was faster
                    self._thread, self._watched, thread.at_end = thread, watched, self.session.drop
            finally:
                end_unless(made, self._thread)
        return self._thread.wait(begin)

    def _forget_parent(self) -> None:
        """In the child of a fork: the parent's thread and sockets are not ours."""
        if self._thread is None or not self._thread.loop.is_closed():  # one that was closed stays so
            self._thread = None
            self._use(Session(self.session.bootstrap, self.config))


_admins: weakref.WeakSet[Admin] = weakref.WeakSet()


def _after_fork() -> None:
    for admin in list(_admins):
        admin._forget_parent()


os.register_at_fork(after_in_child=_after_fork)
