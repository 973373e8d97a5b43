"""The blocking consumer: the asynchronous one on a thread of its own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from strandline.client.aio.consumer import Consumer as AsyncConsumer
from strandline.client.aio.consumer import Partition
from strandline.client.loop_thread import LoopThread
from strandline.client.types import ConsumerRecord, OffsetAndTimestamp
from strandline.proto.ids import TopicPartition

T = TypeVar("T")


class Consumer:
    """Reads the partitions that it is told to. One thread at a time; fetching ahead goes on between the calls.

    Every method does and raises what its twin in `strandline.client.aio.Consumer` does. In the child of a fork a
    consumer starts anew, with the assignment and the positions that it had.
    """

    def __init__(self, bootstrap: str | Sequence[str] = "127.0.0.1:9092", **settings: object) -> None:
        make: Callable[..., AsyncConsumer] = AsyncConsumer
        self._make = partial(make, bootstrap, **settings)
        self._inner = self._make()
        self._thread: LoopThread | None = None
        _consumers.add(self)

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions and no others. Positions of those that stay are kept."""
        wanted = list(partitions)
        self._call(lambda: self._inner.assign(wanted))

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, in the order in which they were named."""
        return self._inner.assignment()

    def seek(self, partition: Partition, offset: int) -> None:
        """The next record of the partition is the first at or after `offset`."""
        self._call(lambda: self._inner.seek(partition, offset))

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Go on from the first offset that the log has; no partition named: all that are assigned."""
        self._call(lambda: self._inner.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: Partition) -> None:
        """Go on behind the last record that consumers may see, as of the next poll."""
        self._call(lambda: self._inner.seek_to_end(*partitions))

    def seek_to_timestamp(self, timestamps_ms: Mapping[Partition, int]) -> None:
        """Go on from the first record at or after a time (ms since 1970), or from the end where there is none."""
        self._call(lambda: self._inner.seek_to_timestamp(timestamps_ms))

    def position(self, partition: Partition) -> int:
        """Offset of the next record that poll returns."""
        return self._wait(self._inner.position(partition))

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these partitions, and fetch none, until `resume`; positions are kept."""
        self._call(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        """Undo `pause`."""
        self._call(lambda: self._inner.resume(*partitions))

    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return self._inner.paused()

    def poll(self, timeout_s: float = 0.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Up to `max_records` (`max.poll.records`) records; waits at most `timeout_s` for the first."""
        return self._wait(self._inner.poll(timeout_s, max_records))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        return self._inner.next_polled() or self._wait(self._inner.__anext__())

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._wait(self._inner.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """The offset after the last record that this consumer may see."""
        return self._wait(self._inner.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps_ms: Mapping[Partition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms), None where there is none."""
        return self._wait(self._inner.offsets_for_times(timestamps_ms))

    def partitions_for(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions."""
        return self._wait(self._inner.partitions_for(topic))

    @property
    def fetch_requests_sent(self) -> int:
        """Fetch requests since the start, for tests and metrics."""
        return self._inner.fetch_requests_sent

    def close(self) -> None:
        """Stop fetching and close the connections. Idempotent."""
        self._running().stop(self._inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _running(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread("strandline-consumer")
        return self._thread

    def _call(self, function: Callable[[], T]) -> T:
        return self._running().call(function)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._running().wait(coroutine)

    def _forget_parent(self) -> None:
        """In the child of a fork: the parent's thread and sockets are not ours."""
        parent = self._inner
        if self._thread is not None:
            _of_parents.append((self._thread, parent))
        self._thread = None
        self._inner = self._make()
        self._inner.take_over(parent)


_consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
_of_parents: list[object] = []
"""Kept for ever: collecting a parent's loop in the child would close what both share."""


def _after_fork() -> None:
    for consumer in list(_consumers):
        consumer._forget_parent()


os.register_at_fork(after_in_child=_after_fork)
