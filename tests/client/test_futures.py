"""The futures of the blocking producer: places among the results of a batch, and futures of `concurrent.futures`."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from typing import Any

import pytest

from strandline.client.errors import ClientError
from strandline.client.open_batches import Memory
from strandline.client.producer_batch import Answer, OpenRecords, RecordFuture, ThreadFutures, ThreadResults
from strandline.client.types import Ack
from strandline.log.compression import Codec
from strandline.proto.ids import TopicPartition

WHERE = TopicPartition("t", 3)


def batch_of(count: int, kind: ThreadFutures | None = None) -> tuple[ThreadResults, list[RecordFuture]]:
    results = (kind or ThreadFutures()).results(WHERE)
    memory = Memory(1 << 20, 1 << 20, 1 << 20)
    records = OpenRecords.of(memory, results, Codec.NONE)
    futures: list[Any] = [records.append(1_000 + number, None, b"x", ()) for number in range(count)]
    return results, futures


def test_an_ack_is_made_when_it_is_asked_for() -> None:
    results, futures = batch_of(3)
    assert isinstance(futures[0], Future)
    assert not futures[1].done()
    assert futures[1].running()
    assert not futures[1].cancel()
    results.settle(Answer(0, 3, 70, replicas=(1, 2)))
    assert [future.result() for future in futures] == [
        Ack("t", 3, 70 + number, 1_000 + number, (1, 2)) for number in range(3)
    ]
    assert futures[2].exception() is None
    assert not futures[2].cancelled()
    assert "finished" in repr(futures[2])


def test_the_brokers_time_and_no_offset() -> None:
    """LogAppendTime; and a broker that only says that it has them."""
    results, futures = batch_of(2)
    results.settle(Answer(0, 2, -1, 5_000))
    assert [future.result() for future in futures] == [Ack("t", 3, -1, 5_000, None)] * 2


def test_of_a_split_batch_each_record_has_the_answer_of_its_half() -> None:
    """The halves' answers come in any order, and one may be an error."""
    results, futures = batch_of(5)
    results.settle(Answer(3, 5, 90))
    assert [future.done() for future in futures] == [False, False, False, True, True]
    error = ClientError("the half was refused")
    results.settle(Answer(0, 1, error=error))
    results.settle(Answer(1, 3, 40))
    assert futures[0].exception() is error
    with pytest.raises(ClientError):
        futures[0].result()
    assert [future.result().offset for future in futures[1:]] == [40, 41, 90, 91]


def test_callbacks_run_once_and_in_the_order_of_the_records() -> None:
    results, futures = batch_of(3)
    called: list[int] = []
    for number in (2, 0, 1, 0):
        futures[number].add_done_callback(lambda _, number=number: called.append(number))  # type: ignore[misc]
    results.settle(Answer(0, 3, 0))
    assert called == [0, 0, 1, 2]
    futures[1].add_done_callback(lambda future: called.append(future.result().offset))
    assert called == [0, 0, 1, 2, 1]


def test_a_callback_that_raises_keeps_none_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    results, futures = batch_of(2)
    called: list[Any] = []

    def bad(_: Any) -> None:
        raise RuntimeError("a callback's own")

    futures[0].add_done_callback(bad)
    futures[0].add_done_callback(called.append)
    futures[1].add_done_callback(called.append)
    results.settle(Answer(0, 2, 0))
    assert called == futures
    assert "a callback's own" in caplog.text


def test_many_threads_wait_for_one_record_and_one_for_many() -> None:
    results, futures = batch_of(4)
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(futures[1].result(30).offset)) for _ in range(5)]
    threads.append(threading.Thread(target=lambda: got.extend(one._index for one in as_completed(futures, 30))))
    for thread in threads:
        thread.start()
    done, rest = wait(futures, 0.05, FIRST_COMPLETED)
    assert (len(done), len(rest)) == (0, 4)
    results.settle(Answer(0, 2, 10))
    done, rest = wait(futures, 30, FIRST_COMPLETED)
    assert (len(done), len(rest)) == (2, 2)
    results.settle(Answer(2, 4, error=ClientError("refused")))
    for thread in threads[:-1]:
        thread.join()
    threads[-1].join()
    assert sorted(got) == [0, 1, 2, 3] + [11] * 5
    assert len(wait(futures, 30).done) == 4


def test_a_wait_that_ends_by_its_time() -> None:
    results, futures = batch_of(1)
    began = time.monotonic()
    for timeout in (0, -1, 0.05):
        with pytest.raises(TimeoutError):
            futures[0].result(timeout)
    assert time.monotonic() - began < 20
    results.settle(Answer(0, 1, 8))
    assert futures[0].result(0).offset == 8


def test_a_callback_does_not_wait_for_itself() -> None:
    """Schedule 67: on the thread that completes them a pending future would never end; one that is done has its ack."""
    results, futures = batch_of(2, ThreadFutures(lambda: True))
    with pytest.raises(ClientError, match="callback"):
        futures[0].result()
    results.settle(Answer(0, 2, 8))
    assert futures[0].result().offset == 8


def test_in_the_child_of_a_fork_nobody_is_told() -> None:
    """Another thread may have held the lock; what has its answer keeps it."""
    kind = ThreadFutures()
    results, futures = batch_of(3, kind)
    called: list[Any] = []
    futures[2].add_done_callback(called.append)
    results.settle(Answer(0, 1, 8))
    holder = threading.Thread(target=kind.lock.acquire)
    holder.start()
    holder.join()
    error = ClientError("the parent's")
    kind.after_fork()
    results.disown(Answer(0, 1, error=error))
    results.disown(Answer(1, 3, error=error))
    assert futures[0].result().offset == 8
    assert futures[2].exception() is error
    assert not called
