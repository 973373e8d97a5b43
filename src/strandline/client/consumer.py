"""The blocking consumer: the asynchronous one on a thread of its own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

from strandline.client.aio.consumer import CLOSE_S, Partition
from strandline.client.aio.consumer import Consumer as AsyncConsumer
from strandline.client.errors import ClosedError
from strandline.client.groups.session import ConsumerState, Listener, Topics
from strandline.client.loop_thread import Calls, LoopThread, end_unless, of_parents, refused
from strandline.client.polled import PolledRecords
from strandline.client.settings import ConsumerSettings
from strandline.client.types import ConsumerRecord
from strandline.client.unclosed import nothing, watch
from strandline.proto.ids import TopicPartition

# Methods made from those of the asynchronous twin, which is `inner`: same arguments, same docstring

P = ParamSpec("P")
T = TypeVar("T")


def waiting(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The twin of a coroutine function: the caller waits for its end."""

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast(T, self.wait(partial(method, self.inner, *args, **kwargs)))

    return twin


def on_thread(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The twin of a function that only the client's thread may call."""

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast(T, self.call(partial(method, self.inner, *args, **kwargs)))

    return twin


def direct(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The twin of a function that any thread may call."""

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.inner, *args, **kwargs)

    return twin


class Consumer:
    """Reads the partitions that its group gives it, or that `assign` names. One thread at a time.

    Fetching ahead and heartbeats go on between the calls, on a thread of its own; listeners are called by the thread
    that polls, inside `poll`, and may call this consumer. Every method does and raises what its twin in
    `strandline.client.aio.Consumer` does. In the child of a fork a consumer starts anew, with the assignment and the
    positions that it had, or as a new member of its group.
    """

    def __init__(self, bootstrap: str | Sequence[str] = "127.0.0.1:9092", **settings: Unpack[ConsumerSettings]) -> None:
        make: Callable[..., AsyncConsumer] = AsyncConsumer
        self._make = partial(make, bootstrap, **settings)
        self._calls = Calls()
        self.inner = self._made()
        self._thread: LoopThread | None = None
        self._watched: Callable[[], None] = nothing
        _consumers.add(self)

    def subscribe(
        self,
        topics: Topics,
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        on_replaced: Listener | None = None,
    ) -> None:
        """Read what the group gives this consumer of these topics: a name, several, or a compiled pattern."""
        listeners = {
            "on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost, "on_replaced": on_replaced,
        }  # fmt: skip
        self.call(lambda: self.inner.subscribe(topics, **listeners))

    def unsubscribe(self) -> None:
        """Commit what is done (`enable.auto.commit`), give all partitions up and leave the group."""
        self._serve(self.inner.unsubscribe)

    subscription = direct(AsyncConsumer.subscription)

    def assign(self, partitions: Iterable[Partition], *, on_replaced: Listener | None = None) -> None:
        """Read exactly these partitions. Partitions that were assigned before keep their positions."""
        wanted = list(partitions)
        self.call(lambda: self.inner.assign(wanted, on_replaced=on_replaced))

    assignment = direct(AsyncConsumer.assignment)
    seek = on_thread(AsyncConsumer.seek)
    seek_to_beginning = on_thread(AsyncConsumer.seek_to_beginning)
    seek_to_end = on_thread(AsyncConsumer.seek_to_end)
    seek_to_timestamp = on_thread(AsyncConsumer.seek_to_timestamp)
    position = waiting(AsyncConsumer.position)
    pause = on_thread(AsyncConsumer.pause)
    resume = on_thread(AsyncConsumer.resume)
    paused = direct(AsyncConsumer.paused)

    def poll(self, timeout_s: float = 0.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Up to `max_records` (`max.poll.records`) records; waits at most `timeout_s` for the first."""
        return self._serve(partial(self.inner.poll, timeout_s, max_records), self.inner.put_back)

    def poll_columns(self, timeout_s: float = 0.0, max_records: int | None = None) -> PolledRecords:
        """Poll columns, batches whole: `to_arrow()` and `to_pandas()` make no object for a record. Else as `poll`."""
        return self._serve(partial(self.inner.poll_columns, timeout_s, max_records), self.inner.put_parts_back)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        return self._next_polled() or self._serve(self.inner.__anext__, self.inner.put_one_back)

    def next_record(self, timeout_s: float, *, raw: bool = False) -> ConsumerRecord | None:
        """The next record, and the one before it is done; None when none comes in time. `raw`: not deserialized."""
        found = self._next_polled(raw=raw)
        return found or self._serve(partial(self.inner.next_record, timeout_s, raw=raw), self.inner.put_one_back)

    def _next_polled(self, *, raw: bool = False) -> ConsumerRecord | None:
        """The next record without waiting, if no call was interrupted whose records are still to come back."""
        thread = self._thread
        return None if thread is not None and thread.unsettled else self.inner.next_polled(raw=raw)

    take_back = on_thread(AsyncConsumer.take_back)

    deserialized = direct(AsyncConsumer.deserialized)
    stop = direct(AsyncConsumer.stop)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called and no run has ended since."""
        return self.inner.stopped

    finish_run = direct(AsyncConsumer.finish_run)
    commit = waiting(AsyncConsumer.commit)
    commit_async = on_thread(AsyncConsumer.commit_async)
    group_metadata = on_thread(AsyncConsumer.group_metadata)
    handed_out = waiting(AsyncConsumer.handed_out)
    committed_with_transaction = on_thread(AsyncConsumer.committed_with_transaction)
    committed = waiting(AsyncConsumer.committed)
    lag = waiting(AsyncConsumer.lag)

    @property
    def state(self) -> ConsumerState:
        """State of this consumer: joining, stable, rebalancing, lost, ..., and its last error."""
        return self.inner.state

    beginning_offsets = waiting(AsyncConsumer.beginning_offsets)
    end_offsets = waiting(AsyncConsumer.end_offsets)
    offsets_for_times = waiting(AsyncConsumer.offsets_for_times)
    partitions_for = waiting(AsyncConsumer.partitions_for)

    @property
    def fetch_requests_sent(self) -> int:
        """Fetch requests since the start, for tests and metrics."""
        return self.inner.fetch_requests_sent

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit what is done (`enable.auto.commit`), leave the group, close the connections, by then. Idempotent.

        Listeners are called here, and what they take comes on top.
        """
        running = self._running()
        if running.is_current:
            raise refused("close")
        try:
            if not running.closed:
                self._serve(partial(self.inner.close, timeout_s))
        except ClosedError:
            if not running.closed:  # else an earlier call, which was interrupted, ends it just now
                raise
        finally:
            running.stop(self.inner.close)
            self._watched()
        running.raise_left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _running(self) -> LoopThread:
        if self._thread is None:
            made: list[LoopThread] = []
            try:
                thread = LoopThread("strandline-consumer", made)
                # rule B43/a-client-that-is-not-watched
                watched = watch(self, "a Consumer", thread, partial(thread.stop, self.inner.close))
                if self._thread is None:  # else a signal's handler was faster
                    # rule B43/a-client-that-is-not-watched/2
                    self._thread, self._watched, thread.at_end = thread, watched, self.inner.session.drop
            finally:
                end_unless(made, self._thread)  # rule B43/a-thread-that-nobody-has-goes-on
        return self._thread

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the thread of the asynchronous twin, `inner`; its result."""
        return self._running().call(function)

    def wait(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Run the coroutine that `begin` makes beside the asynchronous twin, `inner`; its result."""
        return self._running().wait(begin)

    def _serve(self, begin: Callable[[], Awaitable[T]], lost: Callable[[T], None] | None = None) -> T:
        """Run what may call listeners: they are called here. A listener may itself call what calls listeners."""
        outer, self._calls = self._calls, Calls()
        try:
            return self._running().serve(begin, self._calls, lost)
        finally:
            self._calls = outer

    def _made(self) -> AsyncConsumer:
        inner = self._make()
        outer = weakref.ref(self)  # the thread holds `inner`: a consumer that is dropped must be collected

        async def invoke(listener: Listener, partitions: list[TopicPartition]) -> None:
            consumer = outer()
            if consumer is not None:
                await consumer._calls.ask(partial(listener, partitions))

        inner.listen_through(invoke)
        return inner

    def _forget_parent(self) -> None:
        """In the child of a fork: let go of the parent's thread and sockets."""
        if self._thread is not None and self._thread.loop.is_closed():
            return  # one that was closed stays so
        parent = self.inner
        of_parents.append(parent)
        self._thread = None
        self.inner = self._made()
        self.inner.take_over(parent)


_consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()


def _after_fork() -> None:
    for consumer in list(_consumers):
        consumer._forget_parent()


os.register_at_fork(after_in_child=_after_fork)
